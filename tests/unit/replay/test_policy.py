"""Policies that are unknown or wrong are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.replay.policy import CODEC_SHARE, read_policy
from services.replay.simulated.simulation import Replay
from shared.domain.errors import ConfigurationError
from shared.models.card_lookup import find_card
from shared.models.state_codecs import CodecChoice, shipped_codecs
from tests.unit.replay.house import STATE, load_of, topics


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


def test_auto_counts_the_bytes_of_the_codec_of_each_k() -> None:
    levels, auto = read_policy("afterimage-levels"), CodecChoice("large", "", ())
    large = shipped_codecs(find_card("bundled:large")) or auto
    assert [levels.share_of_fp16(k, 50) for k in levels.capture_steps] == [
        CODEC_SHARE[large.at(k, 50)] for k in levels.capture_steps
    ]
    assert read_policy("afterimage-int4").share_of_fp16(10, 50) == CODEC_SHARE["int4"]
    load = load_of(*topics(200))
    held = Replay(load, levels, 100 * STATE)
    held.run()
    sizes = [max(1, round(STATE * levels.share_of_fp16(k, 50))) for steps in held.held().values() for k in steps]
    assert held.holds == (len(sizes), sum(sizes))
