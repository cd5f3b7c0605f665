"""The bundled segmenter's training: phrases, true masks, a run that resumes, the exported folder, the judgement."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPTokenizer

from services.segmenter.choice import open_segmenter
from services.trainer.export import shipped_autoencoder
from services.trainer.rendering.clips import render_clip
from services.trainer.rendering.renderer import Renderer
from services.trainer.segmentation.architecture import new_segmenter
from services.trainer.segmentation.examples import PHRASES, SIDE, absent_phrase, batch, example, grown
from services.trainer.segmentation.export import export_segmenter, trained_segmenter
from services.trainer.segmentation.judging import judge_segmenter, overlap, probabilities
from services.trainer.segmentation.phrases import background_phrase, object_phrase
from services.trainer.segmentation.training import SegmenterPlan, mask_losses, train_segmenter
from services.trainer.training import runs
from services.trainer.words import Words
from shared.domain.errors import NotFoundError
from shared.models.card_lookup import BUNDLED
from shared.models.scenes import MovingScene, Scene, random_moving_scene
from tests.unit.trainer.conftest import SPRITES

PLAN = SegmenterPlan(steps=3, batch=2)
FOX = MovingScene(Scene("fox", colour="red", background="snow", light="night"), "left", "drift")


def test_phrases_name_what_the_scene_shows_and_absent_ones_do_not() -> None:
    rng = random.Random(1)
    objects = {object_phrase(FOX, rng) for _ in range(200)}
    places = {background_phrase(FOX, rng) for _ in range(200)}
    assert all("fox" in phrase for phrase in objects)
    assert {"a red fox", "fox", "a red fox moves to the left"} <= objects
    assert all("snow" in phrase for phrase in places)
    assert {"in the snow", "the snow", "in a snowy field by night"} & places
    for _ in range(50):
        moving = random_moving_scene(rng)
        assert moving.scene.object not in absent_phrase(moving, rng).split()


def test_examples_have_true_masks(renderer: Renderer) -> None:
    rng = random.Random(2)
    found = [example(renderer, rng) for _ in range(30)]
    for one in found:
        own, place, third = one.masks
        assert own.any()
        assert not (own & (place | third)).any()
        assert len(one.phrases) == PHRASES
    second = [one.masks[2].any() for one in found]
    assert any(second)
    assert not all(second)
    clip = render_clip(renderer, FOX, only=[0, 15])
    for pixels, mask, boxes in zip(clip.pixels, clip.masks, clip.boxes, strict=True):
        x0, y0, x1, y1 = boxes[0]
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 100
        assert pixels.shape[:2] == mask.shape


def test_a_grown_mask_has_the_pixels_around_it() -> None:
    mask = np.zeros((5, 5), dtype=np.bool_)
    mask[2, 2] = True
    assert grown(mask).sum() == 9
    assert overlap(mask, grown(mask)) == pytest.approx(1 / 9)
    assert overlap(np.zeros_like(mask), np.zeros_like(mask)) == 1


def test_batches_of_other_sizes_have_the_models_side(renderer: Renderer) -> None:
    for seed in range(12):
        inputs, phrases, masks = batch(renderer, random.Random(seed), 2)
        assert inputs.shape == (2, 3, SIDE, SIDE)
        assert masks.shape == (2, PHRASES, SIDE, SIDE)
        assert len(phrases) == 2 * PHRASES


def test_right_masks_have_the_smaller_loss() -> None:
    masks = torch.zeros(1, 2, 8, 8)
    masks[0, 0, :4] = 1
    right, wrong = (mask_losses(sign * (masks - 0.5) * 20, masks) for sign in (1, -1))
    assert all(a < 0.01 < 0.5 < b for a, b in zip(right, wrong, strict=True))


def test_it_begins_with_the_pairs_towers() -> None:
    torch.manual_seed(0)
    model = new_segmenter(BUNDLED / "clip")
    words = Words(CLIPTokenizer.from_pretrained(BUNDLED / "clip"))
    pixels = np.random.default_rng(0).integers(0, 255, (2, SIDE, SIDE, 3), dtype=np.uint8)
    found = probabilities(model.eval(), words, pixels, ["a red fox", "in the snow"] * 2)
    assert found.shape == (2, 2, SIDE, SIDE)
    assert 0.05 < found.min() < found.max() < 0.95  # nothing is decided yet
    # two bytes a weight
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 5e6


def test_a_run_resumes_and_its_export_serves(renderer: Renderer, tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for work in (whole, parted):
        work.mkdir()
        (work / "sprites").symlink_to(SPRITES.absolute())
    with pytest.raises(NotFoundError):
        trained_segmenter(whole, BUNDLED)
    train_segmenter(PLAN, whole, BUNDLED)
    assert runs.steps_done(whole / "segmenter.pt") == PLAN.steps
    train_segmenter(replace(PLAN, steps=2), parted, BUNDLED)
    train_segmenter(PLAN, parted, BUNDLED)
    assert runs.steps_done(parted / "segmenter.pt") == PLAN.steps
    export_segmenter(whole, BUNDLED, tmp_path / "model")
    size = sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert size <= 5e6
    frames = render_clip(renderer, FOX, only=[0, 8]).pixels
    phrases = ["a red fox", "in the snow"]
    served = open_segmenter(str(tmp_path / "model")).segment(frames, phrases)
    words = Words(CLIPTokenizer.from_pretrained(BUNDLED / "clip"))
    judged = probabilities(trained_segmenter(whole, BUNDLED), words, frames, phrases * 2)
    assert np.allclose(served, judged.swapaxes(0, 1), atol=0.01)  # the export rounds to fp16
    vae = shipped_autoencoder(BUNDLED)
    scores = judge_segmenter(trained_segmenter(whole, BUNDLED), words, renderer, vae, count=4)
    assert scores["bounds_hold"] is False
    assert 0 <= scores["round_trip/cells/background"] <= 1
