"""Each segmentation model on tiny random weights, through the code that loads real ones."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPSegForImageSegmentation, CLIPSegProcessor

from services.segmenter.choice import check_segmenter, open_segmenter
from shared.domain.errors import ModelError
from shared.runtime.animated_png import Frames
from tests.tiny_segmenters import SIDE, tiny_clipseg, tiny_detector, tiny_sam

PHRASES = ["a red fox", "in the snow"]


def clip(frames: int = 3, side: int = SIDE) -> Frames:
    return np.random.default_rng(0).integers(0, 255, (frames, side, side, 3), dtype=np.uint8)


def is_shares(found: np.ndarray, frames: Frames) -> bool:
    bounds = 0 <= found.min() <= found.max() <= 1
    return found.shape == (len(PHRASES), *frames.shape[:3]) and found.dtype == np.float32 and bool(bounds)


def test_a_clipseg_gives_what_its_own_forward_pass_gives(tmp_path: Path) -> None:
    folder, frames = tiny_clipseg(tmp_path / "clipseg"), clip()
    found = open_segmenter(str(folder)).segment(frames, PHRASES)
    assert is_shares(found, frames)
    model, processor = CLIPSegForImageSegmentation.from_pretrained(folder), CLIPSegProcessor.from_pretrained(folder)
    for row, phrase in zip(found, PHRASES, strict=True):
        inputs = processor(text=[phrase] * 3, images=list(frames), return_tensors="pt", padding=True)
        with torch.inference_mode():
            expected = model.eval()(**inputs).logits.sigmoid().numpy()
        assert np.allclose(row, expected, atol=1e-5)


def test_a_clip_of_another_size_and_of_more_frames_than_a_batch(tmp_path: Path) -> None:
    folder, frames = tiny_clipseg(tmp_path / "clipseg"), clip(frames=17, side=24)
    found = open_segmenter(str(folder)).segment(frames, PHRASES)
    assert is_shares(found, frames)
    alone = open_segmenter(str(folder)).segment(frames[16:], PHRASES)
    assert np.allclose(found[:, 16:], alone, atol=1e-5)


def test_a_detector_and_sam_together(tmp_path: Path) -> None:
    pair = f"{tiny_detector(tmp_path / 'dino')}+{tiny_sam(tmp_path / 'sam')}"
    check_segmenter(pair)
    frames = clip(frames=2, side=32)
    found = open_segmenter(pair).segment(frames, PHRASES)
    assert is_shares(found, frames)
    assert found.any()  # random scores are near a half, above the threshold


def test_a_model_that_is_no_segmenter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match=r"grounding-dino and sam .*\(got bert\)"):
        check_segmenter(str(tmp_path))
    with pytest.raises(ModelError, match="AFTERIMAGE_SEGMENTER"):
        check_segmenter("bundled:nothing")
    alone = tiny_sam(tmp_path / "sam")
    with pytest.raises(ModelError, match="got sam"):
        check_segmenter(str(alone))


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
@pytest.mark.parametrize("kind", ["sam3", "sam3_video"])
def test_sam3_says_which_package_is_missing(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match="torchvision"):
        open_segmenter(str(tmp_path))


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = tiny_clipseg(tmp_path / "clipseg")
    (folder / "model.safetensors").write_bytes(b"torn")
    check_segmenter(str(folder))
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_segmenter(str(folder))
