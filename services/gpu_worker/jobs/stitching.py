"""Stitching: one latent from the object of one state and the background of another (FlexCache §4.2.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.gpu_worker.engine.noises import Noise, stitched_noises
from services.gpu_worker.engine.rows import FromState, Latent
from services.gpu_worker.jobs.codecs import decode_state, noises_of
from shared.domain.errors import BlobCorruptError
from shared.domain.masks import Bits, taken_cells, unpack
from shared.domain.types import Plan


class StatePart(NamedTuple):
    """One state of a pair."""

    latent: Latent
    noises: tuple[Noise, ...]
    """Noises that the state carries; empty: unknown."""


def start_of_pair(
    plan: Plan,
    object_state: StatePart,
    background_state: StatePart,
    object_masks: tuple[Bits, Bits],
    background_masks: tuple[Bits, Bits],
) -> FromState:
    """Return the start that a stitched plan names, from both states and the masks of both entries. It carries the
    noises of both states, each in the cells that come from its state. Raises BlobCorruptError as `stitch` does."""
    latent = stitch(object_state.latent, background_state.latent, object_masks[0], background_masks[1])
    taken = taken_cells(object_masks[0], background_masks[1]).ravel()
    noises = stitched_noises(taken, object_state.noises, background_state.noises)
    return FromState(latent, plan.start_step, plan.fresh_noise, plan.noise_seed, noises)


def stitch(object_state: Latent, background_state: Latent, object_mask: Bits, background_mask: Bits) -> Latent:
    """Return a latent of the states' shape, (C, F, h, w) or (C, h, w) of an image, from two states at one noise level.

    object_mask: the object's cells of the clip that gives the object, (F, h, w); background_mask: the background's
    cells of the clip that gives the background. The masks seldom fit together, so both are combined:

    - A cell of the object comes from the object's state, also where the other clip shows its background.
    - A cell outside the object comes from the background's state where that clip shows its background.
    - A cell in neither, where the other clip shows an object of its own, comes from the object's state: §4.2.2 replaces
      the "alien" of the background by the object's clip at the same location.

    Raises BlobCorruptError for masks or states of shapes that do not fit.
    """
    grid = object_state.shape[1:] if object_state.ndim == 4 else (1, *object_state.shape[1:])
    if not (object_state.shape == background_state.shape and object_mask.shape == background_mask.shape == grid):
        raise BlobCorruptError(
            "two states and their masks must fit together (got shapes "
            f"{object_state.shape}, {background_state.shape}, {object_mask.shape}, {background_mask.shape})"
        )
    taken = taken_cells(object_mask, background_mask).reshape(object_state.shape[1:])
    stitched: Latent = np.where(taken, object_state, background_state)
    return stitched


def state_part(blob: bytes, codec: str, shape: tuple[int, ...], base: bytes = b"") -> StatePart:
    """Return one state of a pair. base: the bytes of the state that this one needs.

    Raises BlobCorruptError for bytes that are no state of this shape.
    """
    latent = decode_state(blob, codec, base)
    if latent.shape != shape:
        raise BlobCorruptError(f"a part of a pair must have shape {shape} (got {latent.shape})")
    return StatePart(latent, noises_of(blob, codec))


def mask_part(blob: bytes, shape: tuple[int, ...]) -> tuple[Bits, Bits]:
    """Return the masks of one entry, (F, h, w). Raises BlobCorruptError for bytes that are no masks of this shape."""
    return unpack(blob, shape)
