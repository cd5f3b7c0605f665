"""Training of a text-to-image denoiser and its text encoder on stored latents, in one or more single-thread workers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel

from services.trainer.text_to_image.architecture import SHAPES
from services.trainer.text_to_image.denoiser import TIMESTEP_CENTRE, Denoiser, Teacher, sample
from services.trainer.text_to_image.latents import Latents
from services.trainer.training import runs
from services.trainer.training.muon import Muon
from services.trainer.training.sitting import SETTLED
from services.trainer.words import Words

OPTIMIZERS = ("muon", "adamw")
"""Muon for inner matrices and AdamW for the rest, or AdamW for all."""


@dataclass(frozen=True)
class DenoiserPlan:
    """Training plan of a denoiser: `steps`, or `seconds` of wall time over all runs, whichever ends first."""

    steps: int = 2839
    seconds: float = math.inf
    seed: int = 2
    rate: float = 1.5e-3
    optimizer: str = OPTIMIZERS[0]
    batch: int = 32
    average_every: int = 4
    other_sizes: float = 0.22
    timestep_centre: float = TIMESTEP_CENTRE
    dropout: float = 0.12
    decay_from: float = 0.6
    warmup: int = 100
    checkpoint_s: float = 60.0
    grid_s: float = 300.0
    grid_prompts: Sequence[str] = field(default=())
    judged: int = 0
    """Number of held-out images to generate and judge at the end."""


class Run:
    """One worker of a training run: its weights and its progress."""

    def __init__(
        self,
        name: str,
        plan: DenoiserPlan,
        words: Words,
        data: Latents,
        work: Path,
        rank: int = 0,
        world: int = 1,
        teacher: Teacher | None = None,
        start: Path | None = None,
        device: torch.device | None = None,
    ):
        """Continue from the checkpoint; without one, from the exported weights in `start`, if given.

        The run uses `device`, by default the CPU."""
        torch.manual_seed(plan.seed)
        self.name, self.plan, self.data, self.work, self.rank, self.world = name, plan, data, work, rank, world
        self.device = device or torch.device("cpu")
        self.model = Denoiser(SHAPES[name], words).to(self.device)
        self.model.timestep_centre = plan.timestep_centre
        if teacher is not None:  # a student uses its teacher's text encoder, which stays frozen
            self.model.teacher = teacher
            self.model.text.requires_grad_(False)
        self.optimizers = _optimizers(self.model, plan)
        self.step, self.samples, self.used_s = 0, 0, 0.0
        self._counted_at = time.monotonic()
        self.path = work / f"{name}.pt"
        if state := runs.load_checkpoint(self.path):
            self._restore(state)
        elif start is not None:
            self._begin_from(start)
            if teacher is not None:
                teacher.lend_text(self.model)
        elif teacher is not None:
            teacher.begin(self.model)
        else:
            self._borrow_text_tower()
        self.model.unet.to(memory_format=torch.channels_last)
        self.average = runs.Average([self.model.unet, self.model.text], decay=0.999)
        if state:
            self.average.load_state_dict(state["average"])
        elif start is not None:
            self.average.updates = SETTLED

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.samples, self.used_s = state["step"], state["samples"], state["used_s"]

    def _begin_from(self, folder: Path) -> None:
        unet = UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=torch.float32, use_safetensors=True)
        text = CLIPTextModel.from_pretrained(folder / "text_encoder", torch_dtype=torch.float32, use_safetensors=True)
        self.model.unet.load_state_dict(unet.state_dict())
        self.model.text.load_state_dict(text.state_dict())

    def _borrow_text_tower(self) -> None:
        pair = runs.load_checkpoint(self.work / "clip.pt")
        if pair is None:
            return
        wanted = self.model.text.state_dict()
        flat = {key.removeprefix("text_model."): value for key, value in pair["model"].items() if "text_model." in key}
        found = {
            key: flat[key.removeprefix("text_model.")] for key in wanted if key.removeprefix("text_model.") in flat
        }
        self.model.text.load_state_dict(found, strict=False)
        runs.log.info("text tower borrowed", tensors=len(found), of=len(wanted))

    def save(self) -> None:
        """Write the checkpoint, with everything that a killed run needs to continue bit-identically."""
        runs.save_checkpoint(
            self.path,
            {
                "model": self.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "average": self.average.state_dict(),
                "step": self.step,
                "samples": self.samples,
                "used_s": self.used_s,
            },
        )

    def done(self) -> float:
        """Return the used share of the plan, 0…1."""
        return max(self.used_s / self.plan.seconds, self.step / self.plan.steps)

    def finished(self) -> bool:
        """Return whether the plan is used up; workers finish only right after averaging, so that all of them agree."""
        return self.done() >= 1 and (self.world == 1 or self.step % self.plan.average_every == 0)

    def advance(self) -> tuple[float, float]:
        """Take one step; the batch, its noise and its timesteps depend on seed, step and rank alone."""
        shared = random.Random(f"{self.plan.seed}-{self.step}")
        own = random.Random(f"{self.plan.seed}-{self.step}-{self.rank}")
        sizes = self.data.sizes()
        size = sizes[0] if shared.random() >= self.plan.other_sizes or len(sizes) == 1 else shared.choice(sizes[1:])
        count = max(1, round(self.plan.batch * 64 * 64 / (size[0] * size[1])))
        batch = self.data.batch(size, count, own, self.plan.dropout).to(self.device)
        generator = torch.Generator().manual_seed(own.getrandbits(40))
        self._set_rate()
        loss, plain = self.model.loss(batch, generator)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.samples += count * self.world
        now = time.monotonic()
        self.used_s, self._counted_at = self.used_s + now - self._counted_at, now
        if self.step % self.plan.average_every == 0:
            if self.world > 1:
                self._meet()
            self.average.update(self.plan.average_every)
        return loss.item(), plain.item()

    def _set_rate(self) -> None:
        left = (1 - self.done()) / (1 - self.plan.decay_from)
        rate = self.plan.rate * min(1.0, (self.step + 1) / self.plan.warmup) * max(0.01, min(1.0, left))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]

    def _meet(self) -> None:
        """Average the workers' weights and clocks every few steps (local SGD)."""
        tensors = [p.data for p in self.model.parameters()]
        flat = torch.cat([*(t.flatten() for t in tensors), torch.tensor([self.used_s])])
        dist.all_reduce(flat)
        flat /= self.world
        self.used_s = float(flat[-1])
        at = 0
        for tensor in tensors:
            tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()


def train_denoiser(run: Run, vae: nn.Module | None = None) -> None:
    """Train until the plan is used up; rank 0 logs, saves, and generates the plan's prompts if `vae` is given."""
    progress = runs.Progress(
        run.work, run.name, used_s=run.used_s, steps=run.plan.steps, done=run.step, share=run.done()
    )
    saved = drawn = time.monotonic()
    leads = run.rank == 0
    while not run.finished():
        loss, plain = run.advance()
        if not leads:
            continue
        progress.add(run.step, run.samples, share=run.done(), weighted=loss, plain=plain)
        if run.step % run.plan.average_every == 0 and time.monotonic() - saved > run.plan.checkpoint_s:
            run.save()
            saved = time.monotonic()
        if vae is not None and run.plan.grid_prompts and time.monotonic() - drawn > run.plan.grid_s:
            _grid(run, vae)
            progress.plot()
            drawn = time.monotonic()
    if leads:
        run.save()
        progress.plot()


@torch.no_grad()
def _grid(run: Run, vae: Any) -> None:
    words = run.data.words
    tokens = torch.tensor([words.ids(prompt) for prompt in run.plan.grid_prompts])
    run.average.swap()
    with runs.autocast(run.device):
        guidance = 1.0 if SHAPES[run.name].guided else 2.5
        latents = sample(
            run.model, tokens, torch.tensor([words.ids("")]), (64, 64), range(len(tokens)), steps=16, guidance=guidance
        )
    run.average.swap()
    pictures = runs.to_pictures(vae.decode(latents.cpu()).sample)
    path = run.work / f"{run.name}-grids" / f"{run.samples:08d}.png"
    runs.save_grid(list(np.asarray(pictures)), 8, path, scale=2)


def _optimizers(model: Denoiser, plan: DenoiserPlan) -> list[torch.optim.Optimizer]:
    """Return Muon for the inner matrices and kernels, AdamW for tables, gains and the outer layers; `share` scales the
    rate."""
    inner: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    text = list(model.text.parameters())
    for name, parameter in model.unet.named_parameters():
        matrix = parameter.ndim >= 2 and "conv_in" not in name and "conv_out" not in name and plan.optimizer == "muon"
        (inner if matrix else rest).append(parameter)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": rest, "share": 1.0}, {"params": text, "share": 0.5}],
            lr=plan.rate,
            betas=(0.9, 0.99),
            weight_decay=0.01,
            fused=True,
        )
    ]
    if inner:
        muon = Muon(inner, lr=plan.rate, weight_decay=0.01)
        for group in muon.param_groups:
            group["share"] = 1.0
        found.append(muon)
    return found
