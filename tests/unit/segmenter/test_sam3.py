"""SAM 3 by frame and as a tracker, on tiny random weights, where torchvision is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.segmenter.choice import open_segmenter
from tests.unit.segmenter.test_models import PHRASES, clip, is_shares

pytest.importorskip("torchvision")


def test_the_detector_segments_each_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.segmenter.models import sam3
    from tests.tiny_sam3 import tiny_sam3

    model, frames = open_segmenter(str(tiny_sam3(tmp_path / "sam3"))), clip(frames=2, side=32)
    monkeypatch.setattr(sam3, "SCORE", 0.0)
    found = model.segment(frames, PHRASES)
    assert is_shares(found, frames)
    assert found.any()
    monkeypatch.setattr(sam3, "SCORE", 1.0)
    assert not model.segment(frames, PHRASES).any()


def test_the_tracker_follows_a_clip(tmp_path: Path) -> None:
    from tests.tiny_sam3 import tiny_tracker

    frames = clip(frames=3, side=32)
    found = open_segmenter(str(tiny_tracker(tmp_path / "tracker"))).segment(frames, PHRASES)
    assert is_shares(found, frames)
    assert set(found.ravel().tolist()) <= {0.0, 1.0}
    assert found.any()
