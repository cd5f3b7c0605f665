"""The demo's prompts are a story in words that the bundled models know."""

from __future__ import annotations

import re
from collections import Counter

from services.cli.demo.session import session
from shared.models.scenes import known_words


def test_one_user_refines_re_rolls_and_repeats_and_another_comes_by() -> None:
    prompts = session()
    assert Counter(prompt.user for prompt in prompts) == {"ana": 10, "ben": 2}
    texts = Counter(prompt.text for prompt in prompts)
    seeds = Counter((prompt.text, prompt.seed) for prompt in prompts)
    assert [times for times in texts.values() if times > 1] == [2, 3]  # an exact repeat, and three seeds of a prompt
    assert [times for times in seeds.values() if times > 1] == [2]
    assert len({prompt.seed for prompt in prompts}) == 11
    words = {word for prompt in prompts for word in re.findall(r"[a-z0-9]+", prompt.text.lower())}
    assert words <= set(known_words())
