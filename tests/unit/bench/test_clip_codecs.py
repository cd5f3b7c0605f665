"""The benchmark of clips' codecs: its figures on clips of known noise, and its upper limits."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import clip_codecs
from bench.clip_codecs import OTHERS, VARIANTS, arithmetic, clip_row, measured, of_part
from bench.measuring.clip_codec_figures import figures_of, report
from bench.measuring.clip_codec_plots import plot
from bench.measuring.clip_states import States, read_states, write_states
from services.gpu_worker.engine.rows import first_noise
from shared.models import find_card

KS = (5, 10, 15, 20, 25)


def states_of(seed: int, windows: tuple[int, int] = (4, 2)) -> States:
    """Return states of a still clip of FreeNoise: 4 noises in 12 frames."""
    noise = first_noise(seed, (4, 12, 8, 8), windows).numpy()
    shown = np.random.default_rng(seed).standard_normal((4, 1, 8, 8)).astype(np.float32)
    return {k: (1 - k / 50) * noise + k / 50 * shown for k in KS}


def test_a_still_clip_of_freenoise_reaches_its_limit(tmp_path: Path) -> None:
    rows = [clip_row(states_of(seed), seed, (4, 2)) for seed in range(3)]
    figures = figures_of(rows)
    assert (figures["clips"], figures["frames"], figures["ks"]) == (3, 12, list(KS))
    assert figures["codecs"].keys() == VARIANTS.keys() | set(OTHERS)
    for name in VARIANTS:
        codec = figures["codecs"][name]
        assert codec["frame_ratio"]["mean"] == pytest.approx(12 * 5 / (5 + 3))
        assert set(codec["redundant"].values()) == {8 / 12}
        assert set(codec["extra"].values()) == {0}
        assert codec["least_cosine"] > 0.995
    assert np.array(figures["difference_similarity"]).min() > 0.999
    ratios = {name: codec["ratio"]["mean"] for name, codec in figures["codecs"].items()}
    assert ratios["residual-4x2x2"] > ratios["residual-2x2x2"] > ratios["residual"] > ratios["int4"] > ratios["int8"]
    whole = {"arithmetic": arithmetic((16, 64)), "lengths": [figures], "quality": []}
    assert "3 clips of 12 frames, states after 5, 10, 15, 20, 25" in report(whole)
    plot(whole, tmp_path / "plot.png")


def test_independent_noise_caps_near_four_and_freenoise_at_sixteen() -> None:
    short, long = arithmetic((16, 64))
    assert (short["independent"], short["freenoise"]) == (4, 4)
    assert (round(long["independent"], 2), long["freenoise"]) == (4.71, 16)
    assert 0 < short["highest_cosine"] < long["highest_cosine"] < 0.3  # far from the .99 of a merge


def test_states_are_kept_in_fp16(tmp_path: Path) -> None:
    states = states_of(1)
    write_states(tmp_path / "16" / "1.npz", states)
    for k, latent in read_states(tmp_path / "16" / "1.npz").items():
        np.testing.assert_array_equal(latent, states[k].astype(np.float16).astype(np.float32))


def test_a_later_run_measures_the_missing_clips_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Sequence[int]]()

    def states(
        _: Any, numbers: Sequence[int], frames: int, steps: int, folder: Path, device: str
    ) -> Iterator[tuple[int, Path]]:
        asked.append(numbers)
        for number in numbers:
            write_states(folder / f"{number}.npz", states_of(number))
            yield number, folder / f"{number}.npz"

    monkeypatch.setattr(clip_codecs, "states_of", states)
    card = find_card("bundled:motion")
    monkeypatch.setattr(clip_codecs, "clip_row", lambda found, seed, _: clip_row(found, seed, (4, 2)) | {"frames": 16})
    asked_of = {"long": 0, "steps": 50, "device": "cpu", "part": "1/1"}
    first = measured(Namespace(count=1, **asked_of), card, tmp_path, tmp_path)
    with (tmp_path / "clips.jsonl").open("a") as file:
        file.write('{"seed": 1, "fra')  # a killed run left a part of a line
    both = measured(Namespace(count=2, **asked_of), card, tmp_path, tmp_path)
    assert [one for one in asked if one] == [[0], [1]]
    assert both[0] == first[0]
    assert figures_of(both)["ks"] == list(KS)
    assert of_part(Namespace(part="2/3"), range(8)) == range(1, 8, 3)


def test_quality_is_plotted_by_codec_and_k(tmp_path: Path) -> None:
    one = {"value": 0.97, "bound": 0.95, "count": 9}
    rows = [
        {"k": k, "codec": codec, "pairs": 9, "of_fp16": dict.fromkeys(("fidelity", "sharpness", "contrast"), one),
         "attributes_of_fp16": None if codec == "int4" else {**one, "bound": None}}
        for k in (1, 5) for codec in ("fp16", "int4")
    ]  # fmt: skip
    plot({"arithmetic": [], "lengths": [], "quality": rows}, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 0
    plot({"arithmetic": [], "lengths": [], "quality": []}, tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()
