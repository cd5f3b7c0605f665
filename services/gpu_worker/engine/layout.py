"""One step for rows of any shapes: the forward passes of classifier-free guidance, grouped into batches of one latent
shape and padded where results must not depend on the batch; then each sampler's update."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row, Stepped, fresh_noise

Forward = Callable[[Tensor, Tensor, Sequence[PromptEncoding], Sequence[Row]], Tensor]
"""(latents (B, …), timesteps (B,), encodings, rows) → the denoiser's output (B, …), float32. All latents of one call
have one shape, (C, h, w) or (C, F, h, w)."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of a row: with its prompt, or with its negative prompt."""

    row: Row
    encoding: PromptEncoding


Denoise = Callable[[Sequence[Pass]], list[Tensor]]
"""Passes of rows of any shapes → the denoiser's output of each, of its latent's shape, float32."""


def step_rows(rows: Sequence[Row], denoise: Denoise) -> list[Stepped]:
    """Run one step for rows of any shapes, each at its own timestep; results are in the order of the rows."""
    outputs = _guided(rows, denoise)
    stepped: dict[int, Stepped] = {}
    for members in groups([(row.latent.shape, id(row.sampler)) for row in rows]):
        own = [rows[i] for i in members]
        latents, output = (torch.stack(each) for each in ([row.latent for row in own], [outputs[i] for i in members]))
        moved, clean = own[0].sampler.step(latents, output, [row.position for row in own], fresh_noise(own))
        stepped.update(zip(members, map(Stepped, moved.unbind(), clean.unbind()), strict=True))
    return [stepped[i] for i in range(len(rows))]


def denoise_by_shape(passes: Sequence[Pass], forward: Forward, batch_invariant: int = 0) -> list[Tensor]:
    """Run one forward pass for each group of equal latent shape; `batch_invariant`: see `chunks`."""
    outputs: dict[int, Tensor] = {}
    for members in groups([one.row.latent.shape for one in passes]):
        frames = math.prod(passes[members[0]].row.latent.shape[1:-2])
        # a batch of clips is padded to as many frames as a batch of images has rows
        for piece in chunks(len(members), batch_invariant and max(batch_invariant // frames, 1)):
            batch = [passes[members[i]] for i in piece]
            latents = torch.stack([one.row.latent for one in batch])
            timesteps = torch.stack([one.row.position.timestep for one in batch]).to(latents.device)
            output = forward(latents, timesteps, [one.encoding for one in batch], [one.row for one in batch])
            real = [members[i] for i in dict.fromkeys(piece)]  # padding repeats a row; its equal result is dropped
            outputs.update(zip(real, output.unbind(), strict=False))
    return [outputs[i] for i in range(len(passes))]


def groups(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return indices of rows with equal key (latent shape, sampler), keys in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return list(found.values())


def chunks(count: int, batch_invariant: int) -> list[list[int]]:
    """Split `count` forward rows into batches of row indices, padding included.

    Without `batch_invariant`: one batch of all rows. With it: batches of exactly that many rows; the last one is padded
    with copies of its first row. The forward pass then always has one shape (docs/architecture.md, Equality).
    """
    if not batch_invariant:
        return [list(range(count))]
    pieces = [list(range(at, min(at + batch_invariant, count))) for at in range(0, count, batch_invariant)]
    return [piece + piece[:1] * (batch_invariant - len(piece)) for piece in pieces]


def _guided(rows: Sequence[Row], denoise: Denoise) -> list[Tensor]:
    """Apply classifier-free guidance per row; rows without guidance add no unconditional pass."""
    firsts = [Pass(row, row.blank if row.blank is not None and row.unprompted else row.encoding) for row in rows]
    negatives = {
        i: Pass(row, row.negative) for i, row in enumerate(rows) if row.negative is not None and not row.unprompted
    }
    outputs = denoise([*firsts, *negatives.values()])
    for i, unconditional in zip(negatives, outputs[len(rows) :], strict=True):
        outputs[i] = unconditional + rows[i].task.guidance * (outputs[i] - unconditional)
    return outputs[: len(rows)]
