"""The activations of clips are counted on a real tiny model, and grow with the frames as the estimate says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import live_values
from services.gpu_worker.families import load_family
from shared.models import find_card, memory
from tests import tiny_families

CARD = {
    "name": "clips",
    "default_size": {"width": 64, "height": 64},
    "sizes": {"multiple_of": 8, "min_px": 32, "max_px": 64},
    "frames": {"default": 4, "most": 16, "window": 4, "stride": 2},
}


def test_the_estimate_of_a_clip_follows_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_families.save(tmp_path / "clips", "animatediff")
    (folder / "card.json").write_text(json.dumps(CARD))
    family = load_family(find_card(str(folder)))
    counted = {frames: live_values.of_family(family, frames) for frames in (4, 8, 16)}
    card = memory.counted(family.card, folder)
    card = replace(card, row_values=counted[4][0], decode_values=counted[4][1])
    for frames, (values, _) in counted.items():
        said = memory.estimate(card, rows=1, frames=frames).batch
        assert said == pytest.approx(2 * 4 * values, rel=0.3)  # two halves, four bytes
    longest = memory.largest_batch(card)
    assert longest.batch == 4 * memory.estimate(card, rows=1).batch
    assert "a clip of 16 frames" in memory.breakdown(card, longest, "none")
    monkeypatch.setattr(sys, "argv", ["live_values", str(folder)])
    live_values.main()
    assert "clips, frames" in capsys.readouterr().out


def test_a_vae_that_decodes_all_frames_at_once_needs_more_for_longer_clips(tmp_path: Path) -> None:
    folder = tiny_families.save(tmp_path / "clips", "ltx")
    frames = {"default": 9, "most": 33, "multiple_of": 8, "per_latent": 8}
    (folder / "card.json").write_text(json.dumps({**CARD, "frames": frames}))
    family = load_family(find_card(str(folder)))
    counted = {length: live_values.of_family(family, length) for length in (9, 33)}
    card = replace(family.card, row_values=counted[9][0], decode_values=counted[9][1])
    assert memory.largest_batch(card).decoding == pytest.approx(4 * counted[33][1], rel=0.3)
