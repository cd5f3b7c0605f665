"""What the comparison of formats says of given verdicts, and that the recorded one covers every format."""

from __future__ import annotations

import json

import pytest

from bench.measuring.judging import Verdict
from bench.measuring.recording import RESULTS
from bench.state_codecs import CODECS, KS, bytes_of_noise, figures_of, main
from services.cli.profiles.pairs import scene_pairs
from services.replay.policy import CODEC_SHARE


def test_formats_are_held_against_fp16_and_noise() -> None:
    pairs = list(scene_pairs(4, 1))
    right, wrong = {"object": True, "style": True}, {"object": True, "style": False}
    verdicts = {(pair.number, 0, "noise"): Verdict(0.5, right) for pair in pairs}
    for pair in pairs:
        for k in KS:
            for codec in CODECS:
                worse = codec == "int4" and k == KS[-1]
                verdicts[pair.number, k, codec] = Verdict(0.2 if worse else 0.4, wrong if worse else right)
    sizes = {(k, codec): [100 if codec == "fp16" else 30] for k in KS for codec in CODECS}
    rows = {(row["k"], row["codec"]): row for row in figures_of(pairs, verdicts, sizes)}
    assert len(rows) == len(KS) * len(CODECS)
    same, lesser = rows[KS[0], "int8"], rows[KS[-1], "int4"]
    assert (same["clip_of_fp16"], same["bytes_of_fp16"], same["clip_of_noise"]) == (1.0, 0.3, 0.8)
    assert same["judged_otherwise_than_fp16"] == {"lost": 0, "gained": 0, "of": 8}
    assert lesser["clip_of_fp16"] == 0.5
    assert lesser["judged_otherwise_than_fp16"] == {"lost": 4, "gained": 0, "of": 8}
    assert lesser["right"] == 0.5


def test_replays_count_the_bytes_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = bytes_of_noise()
    assert {codec: round(size / sizes["fp16"], 3) for codec, size in sizes.items()} == CODEC_SHARE
    main(["--bytes-only"])
    assert f"| int8 | {sizes['int8']:,} | " in capsys.readouterr().out


def test_what_was_recorded_is_of_every_format_that_replays_know() -> None:
    rows = json.loads((RESULTS / "state_codecs.json").read_text())["figures"]["rows"]
    assert {row["codec"] for row in rows} <= set(CODECS) == set(CODEC_SHARE)
    assert all(row["pairs"] >= 60 for row in rows)
