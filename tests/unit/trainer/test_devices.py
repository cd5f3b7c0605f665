"""The losses and pictures of a training are computed where its weights are: on `meta`, with every call watched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import CLIPModel

from services.trainer.clip_pair import IMAGE_SIDE, Heads, PairPlan, _losses, _trainable, pair_config, tokenizer_at
from services.trainer.text_to_image.autoencoder import _loss, new_autoencoder
from services.trainer.text_to_image.denoiser import sample
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.distillation import GuidedTeacher
from services.trainer.text_to_image.latents import Batch, Latents
from services.trainer.training import runs
from services.trainer.training.muon import orthogonalised
from services.trainer.words import Words
from shared.domain.errors import ConfigurationError
from shared.models.devices import chosen_device

META = torch.device("meta")
MOVES = {torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.cpu, torch._has_compatible_shallow_copy_type}


class OneDevice(TorchFunctionMode):
    """Refuses calls that mix devices, as a GPU would; meta lets some pass. Plain numbers may come from the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        found = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()}
        assert len(found) < 2 or func in MOVES, f"{func} on {found}"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runs, "autocast", lambda device: nullcontext())  # torch has none for meta
    with OneDevice():
        yield


def test_a_mix_of_devices_is_seen() -> None:
    with pytest.raises(AssertionError, match="linear"):
        nn.functional.linear(torch.zeros(1, 2), torch.zeros(2, 2, device=META))
    with pytest.raises(AssertionError, match="embedding"):
        nn.functional.embedding(torch.zeros(1, dtype=torch.long), torch.zeros(2, 2, device=META))


def test_a_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, chosen in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert chosen_device("auto") == chosen
        assert chosen_device("cpu") == "cpu"
        if there:
            assert [chosen_device(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
        for name in ("cuda:2",) if there else ("cuda", "cuda:1"):
            with pytest.raises(ConfigurationError, match=rf"device: .* no {name} .* finds {2 * there} GPUs"):
                chosen_device(name)
    for name in ("gpu", "cuda:one", ""):
        with pytest.raises(ConfigurationError, match=f"device: must be auto, cpu, cuda or cuda:N .got '{name}'"):
            chosen_device(name)


@pytest.mark.parametrize("taught", [False, True])
def test_a_denoisers_step_and_pictures(
    work: Path, teacher: Path, taught: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words(tokenizer_at(work))
    learns_from = GuidedTeacher(teacher, words, device=META) if taught else None
    name, plan = "small" if taught else "large", DenoiserPlan(batch=2)
    (work / f"{name}.pt").unlink(missing_ok=True)
    run = Run(name, plan, words, Latents(work / "latents", words), work, teacher=learns_from, device=META)
    given: list[Batch] = []
    of_batch = run.model.loss

    def loss_of(batch: Batch, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        given.append(batch)
        raise InterruptedError  # the rest of a step reads numbers, which meta has none of

    monkeypatch.setattr(run.model, "loss", loss_of)
    with pytest.raises(InterruptedError):
        run.advance()
    loss, _ = of_batch(given[0], torch.Generator().manual_seed(0))
    torch.autograd.backward(loss)
    gradients = [p.grad for p in run.model.unet.parameters()]
    assert gradients
    assert all(gradient is not None and gradient.device == META for gradient in gradients)
    tokens = torch.tensor([words.ids("a fox"), words.ids("a hat")])
    with torch.no_grad():
        drawn = sample(run.model, tokens, torch.tensor([words.ids("")]), (64, 64), [0, 1], steps=2)
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
