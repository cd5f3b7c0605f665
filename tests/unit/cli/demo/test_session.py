"""The demo's prompts are a story in words that the bundled models know."""

from __future__ import annotations

import re
from collections import Counter

from services.cli.demo.session import session
from shared.models.scenes import known_words


def test_one_user_refines_one_repeats_and_another_comes_by() -> None:
    prompts = session()
    assert Counter(prompt.user for prompt in prompts) == {"ana": 10, "ben": 2}
    repeats = [text for text, times in Counter(prompt.text for prompt in prompts).items() if times > 1]
    assert len(repeats) == 1
    words = {word for prompt in prompts for word in re.findall(r"[a-z0-9]+", prompt.text.lower())}
    assert words <= set(known_words())
