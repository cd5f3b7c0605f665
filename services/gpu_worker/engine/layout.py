"""Grouping of rows for one forward pass: one group per latent shape, padded where results must not depend on the
batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row, Stepped, fresh_noise
from services.gpu_worker.engine.samplers.schedule import wide

Forward = Callable[[Tensor, Tensor, Sequence[PromptEncoding], Sequence[Row]], Tensor]
"""(latents (B, …), timesteps (B,), encodings, rows) → the denoiser's output (B, …), float32. All latents of one call
have one shape, (C, h, w) or (C, F, h, w)."""


def step_by_shape(rows: Sequence[Row], forward: Forward, batch_invariant: int = 0) -> list[Stepped]:
    """Run one step for rows of any shapes, each at its own timestep; results are in the order of the rows."""
    stepped: dict[int, Stepped] = {}
    for members in groups([tuple(row.latent.shape) for row in rows]):
        group = [rows[i] for i in members]
        stepped.update(zip(members, _step_group(group, forward, batch_invariant), strict=True))
    return [stepped[i] for i in range(len(rows))]


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


def _step_group(rows: Sequence[Row], forward: Forward, batch_invariant: int) -> list[Stepped]:
    """Run one forward pass for rows of one latent shape, then each sampler's update for its own rows."""
    latents = torch.stack([row.latent for row in rows])
    frames = math.prod(latents.shape[2:-2])
    # a batch of clips is padded to as many frames as a batch of images has rows
    output = _guided(rows, latents, forward, batch_invariant and max(batch_invariant // frames, 1))
    stepped: dict[int, Stepped] = {}
    for members in groups([id(row.sampler) for row in rows]):
        own = [rows[i] for i in members]
        some = slice(None) if len(own) == len(rows) else members  # a list of indices copies
        positions = [row.position for row in own]
        moved, clean = own[0].sampler.step(latents[some], output[some], positions, fresh_noise(own))
        stepped.update(zip(members, map(Stepped, moved.unbind(), clean.unbind()), strict=True))
    return [stepped[i] for i in range(len(rows))]


def _guided(rows: Sequence[Row], latents: Tensor, forward: Forward, batch_invariant: int) -> Tensor:
    """Apply classifier-free guidance per row; rows without guidance add no unconditional pass."""
    firsts = [row.blank if row.blank is not None and row.unprompted else row.encoding for row in rows]
    negatives = {i: row.negative for i, row in enumerate(rows) if row.negative is not None and not row.unprompted}
    guided = list(negatives)
    owners = [*range(len(rows)), *guided]
    encodings = [*firsts, *negatives.values()]
    timesteps = torch.stack([rows[i].position.timestep for i in owners]).to(latents.device)
    outputs = torch.empty((len(owners), *latents.shape[1:]), dtype=latents.dtype, device=latents.device)
    for piece in chunks(len(owners), batch_invariant):
        riders = [owners[i] for i in piece]
        batch = forward(latents[riders], timesteps[piece], [encodings[i] for i in piece], [rows[i] for i in riders])
        real = len(dict.fromkeys(piece))  # padding repeats a row; its equal result is dropped
        outputs[piece[:real]] = batch[:real]
    conditional, unconditional = outputs[: len(rows)], outputs[len(rows) :]
    if guided:
        scale = wide(torch.tensor([rows[i].task.guidance for i in guided]), latents)
        conditional[guided] = unconditional + scale * (conditional[guided] - unconditional)
    return conditional
