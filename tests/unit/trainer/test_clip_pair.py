"""The pair's batches hold hard negatives and nothing held out; its training resumes; its scores can tell."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import nn
from transformers import CLIPModel

from services.trainer.clip_pair import (
    IMAGE_SIDE,
    Heads,
    PairPlan,
    _batch,
    _losses,
    _trainable,
    judge_pair,
    pair_config,
    rest,
    tokenizer_at,
)
from services.trainer.rendering.renderer import Renderer
from services.trainer.words import Words
from shared.models.scenes import VALUES, Scene, held_out


def test_groups_are_a_scene_with_another_object_another_colour_and_one_more_edit(renderer: Renderer) -> None:
    scenes, inputs = _batch(renderer, random.Random(0), groups=6)
    assert inputs.shape == (24, 3, IMAGE_SIDE, IMAGE_SIDE)
    assert not any(held_out(scene) for scene in scenes)
    for base, other, coloured in zip(scenes[::4], scenes[1::4], scenes[2::4], strict=True):
        assert base.object != other.object
        assert (base.background, base.style, base.count) == (other.background, other.style, other.count)
        assert base.colour != coloured.colour
        assert base.object == coloured.object


def test_a_scene_without_a_trainable_edit_does_not_hang() -> None:
    def styles_left(name: str, place: str) -> list[str]:
        found = [str(style) for style in VALUES["style"]]
        return [style for style in found if not held_out(Scene(name, background=place, style=style))]

    cornered = [
        Scene(str(name), background=str(place), style=left[0])
        for name in VALUES["object"]
        for place in VALUES["background"]
        if len(left := styles_left(str(name), str(place))) == 1
    ]
    assert cornered
    for scene in cornered:
        assert not held_out(_trainable(random.Random(0), scene, "style"))


def test_an_untrained_pair_scores_near_chance(renderer: Renderer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = Words(tokenizer_at(tmp_path))
    found = judge_pair(CLIPModel(pair_config(words)), words, renderer, count=100)
    assert found["image_to_text"] < 0.1
    assert found["text_to_image"] < 0.1
    assert found["object"] < 0.3


def test_a_resting_text_tower_learns_nothing_and_costs_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    words, plan = Words(tokenizer_at(tmp_path)), PairPlan(groups=2)
    model, heads = CLIPModel(pair_config(words)), nn.ModuleList([Heads(), Heads()])
    rng = random.Random(0)
    batch = [_trainable(rng) for _ in range(8)], torch.randn(8, 3, IMAGE_SIDE, IMAGE_SIDE)
    assert set(_losses(model, heads, words, batch, plan)) == {"contrast", "image_heads", "text_heads", "order"}
    rest(model)
    losses = _losses(model, heads, words, batch, plan)
    assert set(losses) == {"contrast", "image_heads"}
    torch.autograd.backward(sum(losses.values(), torch.zeros(())))
    touched = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert touched == {"vision_model", "visual_projection", "logit_scale"}
