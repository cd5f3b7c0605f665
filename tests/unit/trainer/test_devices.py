"""Every training runs where its weights are: on `meta`, an operation that mixes devices fails, as it would on a GPU."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import CLIPModel

from services.trainer import runs
from services.trainer.autoencoder import _loss, new_autoencoder
from services.trainer.clip_pair import IMAGE_SIDE, Heads, PairPlan, _losses, _trainable, pair_config, tokenizer_at
from services.trainer.denoiser import DenoiserPlan, Run, sample
from services.trainer.distillation import GuidedTeacher
from services.trainer.latents import Latents
from services.trainer.muon import orthogonalised
from services.trainer.words import Words

META = torch.device("meta")


@pytest.fixture(autouse=True)
def _plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "autocast", lambda device: nullcontext())  # torch has none for meta


def test_a_device_is_chosen_by_name() -> None:
    assert runs.chosen_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert runs.chosen_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("taught", [False, True])
def test_a_denoisers_step_and_pictures(work: Path, teacher: Path, taught: bool) -> None:
    words = Words(tokenizer_at(work))
    learns_from = GuidedTeacher(teacher, words, device=META) if taught else None
    name, plan = "small" if taught else "large", DenoiserPlan(batch=2)
    (work / f"{name}.pt").unlink(missing_ok=True)
    run = Run(name, plan, words, Latents(work / "latents", words), work, teacher=learns_from, device=META)
    batch = run.data.batch((64, 64), 2, random.Random(0)).to(META)
    loss, _ = run.model.loss(batch, torch.Generator().manual_seed(0))
    torch.autograd.backward(loss)
    gradients = [p.grad for p in run.model.unet.parameters()]
    assert gradients
    assert all(gradient is not None and gradient.device == META for gradient in gradients)
    tokens = torch.tensor([words.ids("a fox"), words.ids("a hat")])
    with torch.no_grad():
        drawn = sample(run.model, tokens, torch.tensor([words.ids("")]), (64, 64), seed=0, steps=2)
    assert drawn.device == META


def test_the_pairs_and_the_autoencoders_losses(tmp_path: Path) -> None:
    words = Words(tokenizer_at(tmp_path))
    model, heads = CLIPModel(pair_config(words)).to(META), nn.ModuleList([Heads(), Heads()]).to(META)
    rng = random.Random(0)
    batch = [_trainable(rng) for _ in range(8)], torch.randn(8, 3, IMAGE_SIDE, IMAGE_SIDE)
    losses = _losses(model, heads, words, batch, PairPlan(groups=2))
    assert {loss.device for loss in losses.values()} == {META}
    with pytest.raises(RuntimeError, match="item"):  # the number itself, which is read last, has no value here
        _loss(new_autoencoder().to(META), torch.zeros(2, 3, 32, 32, device=META), 0.08)


def test_muons_matrices() -> None:
    for shape in ((8, 8), (4, 64), (64, 4)):
        assert orthogonalised(torch.zeros(shape, device=META)).device == META
