"""Policies that are unknown or wrong are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.replay.policy import read_policy
from shared.domain.errors import ConfigurationError


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="nirvana"):
        read_policy("nothing-like-that")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("capture_steps = [0, 25]", "capture_steps: [^\n]* 1 to 49"),
        ("capture_steps = [60]", "capture_steps: [^\n]* 1 to 49"),
        (f'evict = "afterimage"\ncapture_steps = {list(range(2, 13))}', "capture_steps: [^\n]* 10 K"),
        ('evict = "nope"', "^policy [^\n]*mine.toml: evict: Input should be [^\n]*'nope'\\)$"),
        ('compares = "pictures"', "compares: "),
        ('compares = "pictures"\nreuses = "picture"\nmin_similarity = 0.2', "min_similarity: [^\n]*0.25"),
        ("evict = ", "as TOML"),
    ],
)
def test_what_is_no_policy_is_said_in_one_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(f'title = "Mine"\nsource = "me"\n{line}\n')
    with pytest.raises(ConfigurationError, match=said):
        read_policy(str(tmp_path / "mine.toml"))
