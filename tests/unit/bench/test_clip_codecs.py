"""The benchmark of clips' codecs: its figures on clips of known noise, and its upper limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.clip_codecs import OTHERS, VARIANTS, arithmetic, clip_row
from bench.measuring.clip_codec_figures import figures_of, report
from bench.measuring.clip_codec_plots import plot
from bench.measuring.clip_states import States, read_states, write_states
from services.gpu_worker.engine.rows import first_noise

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
