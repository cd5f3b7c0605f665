"""What the comparison of formats says of given records, and that the recorded ones cover every format."""

from __future__ import annotations

import json

import pytest

from bench.measuring.recording import RESULTS
from bench.state_codecs import CODECS, bytes_of_noise, figures_of, main, quality_table
from services.replay.policy import CODEC_SHARE


def test_formats_are_held_against_fp16_and_noise() -> None:
    def of(pair: int, k: int, codec: str, score: float) -> dict[str, object]:
        measures = {"score": score, "contrast": 50.0, "saturation": 90.0, "sharpness": 8.0, "likeness": 0.1}
        size = {"fp16": 100, "noise": 0}.get(codec, 30)
        return {
            "pair": pair, "steps": 5, "k": k, "codec": codec, "bytes": size, "right": 1.0, "measures": measures,
        }  # fmt: skip

    scores = {(0, "noise"): 0.5, (2, "fp16"): 0.5, (2, "int8"): 0.5, (2, "int4"): 0.25}
    rows = list(figures_of([of(pair, *kept, score) for pair in range(6) for kept, score in scores.items()]))
    assert [(row["codec"], row["pairs"], row["bytes_of_fp16"]) for row in rows] == [
        ("fp16", 6, 1.0), ("int8", 6, 0.3), ("int4", 6, 0.3),
    ]  # fmt: skip
    _, same, lesser = rows
    assert (same["of_fp16"]["fidelity"]["value"], same["broken"]) == (1.0, [])
    assert lesser["of_noise"]["fidelity"]["value"] == lesser["of_fp16"]["fidelity"]["value"] == 0.5
    assert [said[:14] for said in lesser["broken"]] == ["fidelity 0.500"] * 2
    assert "| 2 | int4 | 6 |" in quality_table(rows)


def test_replays_count_the_bytes_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = bytes_of_noise()
    assert {codec: round(size / sizes["fp16"], 3) for codec, size in sizes.items()} == CODEC_SHARE
    main(["--bytes-only"])
    assert f"| int8 | {sizes['int8']:,} | " in capsys.readouterr().out


def test_what_was_recorded_is_of_every_format_that_replays_know() -> None:
    rows = json.loads((RESULTS / "state_codecs_t5.json").read_text())["figures"]["rows"]
    assert {row["codec"] for row in rows} == set(CODECS) == set(CODEC_SHARE)
    late = json.loads((RESULTS / "state_codecs_t50.json").read_text())["figures"]["rows"]
    assert {row["k"] for row in late} >= {10, 25, 45}
    assert {row["codec"] for row in late} <= set(CODECS)
