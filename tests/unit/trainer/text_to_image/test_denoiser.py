"""A training run that is killed and resumed ends where an uninterrupted one ends."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch

from services.trainer.clip_pair import tokenizer_at
from services.trainer.text_to_image.denoiser import draw_timesteps, sample
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run, train_denoiser
from services.trainer.text_to_image.latents import Latents
from services.trainer.training.muon import orthogonalised
from services.trainer.words import Words

PLAN = DenoiserPlan(seconds=1e9, steps=3, batch=2, average_every=1, other_sizes=0.5, warmup=1)


def run_in(work: Path, plan: DenoiserPlan = PLAN) -> Run:
    words = Words(tokenizer_at(work))
    return Run("small", plan, words, Latents(work / "latents", words), work)


def test_resumed_equals_uninterrupted(work: Path) -> None:
    whole = run_in(work)
    train_denoiser(whole)
    (work / "small.pt").unlink()

    first = run_in(work)
    first.advance()
    first.save()
    resumed = run_in(work)
    assert resumed.step == 1
    train_denoiser(resumed)

    assert (resumed.step, resumed.samples) == (whole.step, whole.samples)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    for ours, theirs in zip(whole.average.tensors, resumed.average.tensors, strict=True):
        assert torch.equal(ours, theirs)


def test_training_moves_the_weights_and_writes_its_losses(work: Path) -> None:
    run = run_in(work)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    train_denoiser(run)
    moved = [name for name, tensor in run.model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert len(moved) > 0.9 * len(before)
    assert (work / "small.pt").exists()


def test_objects_weigh_more_and_some_captions_are_empty(work: Path) -> None:
    words = Words(tokenizer_at(work))
    data = Latents(work / "latents", words, object_weight=3.0)
    batch = data.batch((96, 64), 40, random.Random(0), dropout=0.5)
    assert batch.latents.shape == (40, 4, 16, 24)
    assert batch.tokens.shape == (40, 32)
    assert set(batch.weights.flatten().tolist()) == {1.0, 3.0}
    empty = torch.tensor(words.ids(""))
    assert 8 < (batch.tokens == empty).all(dim=1).sum() < 32
    again = data.batch((96, 64), 40, random.Random(0), dropout=0.5)
    assert torch.equal(batch.tokens, again.tokens)


def test_timesteps_cover_the_schedule_and_favour_its_middle() -> None:
    found = draw_timesteps(20_000, torch.Generator().manual_seed(0))
    assert found.min() >= 0
    assert found.max() <= 999
    assert ((found > 300) & (found < 800)).float().mean() > 0.55
    assert (found < 50).any()
    assert (found > 950).any()
    lower = draw_timesteps(20_000, torch.Generator().manual_seed(0), centre=-0.5)
    assert lower.float().mean() < found.float().mean() - 80


def test_a_plan_says_which_timesteps_are_learned_most(work: Path) -> None:
    plain, low = run_in(work), run_in(work, replace(PLAN, timestep_centre=-9.0))
    batch = plain.data.batch((64, 64), 8, random.Random(0), dropout=0.0)
    losses = [float(run.model.loss(batch, torch.Generator().manual_seed(0))[1]) for run in (plain, low)]
    assert losses[0] != losses[1]  # the same weights, scenes and noise


def test_a_rows_picture_depends_on_its_own_seed(work: Path) -> None:
    run = run_in(work)
    words = run.data.words
    tokens, empty = torch.tensor([words.ids("a fox"), words.ids("a hat")]), torch.tensor([words.ids("")])
    both = sample(run.model, tokens, empty, (64, 64), seeds=[5, 6], steps=2)
    second = sample(run.model, tokens[1:], empty, (64, 64), seeds=[6], steps=2)
    assert torch.allclose(both[1], second[0], atol=1e-4)


def test_muon_makes_near_orthogonal_updates_of_any_shape() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((16, 16), (16, 400), (300, 20)):
        singular = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=generator)))
        assert singular.max() < 1.35
        assert singular.median() > 0.6
