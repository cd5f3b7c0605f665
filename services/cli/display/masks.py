"""The masks of a stitched start as small pictures (FlexCache §4.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.table import Table
from rich.text import Text

from services.cli.display.previews import half_blocks
from shared.blobs import Blobs
from shared.domain.errors import AfterimageError
from shared.domain.masks import Bits, taken_cells, unpack
from shared.domain.plan_rules import ANOTHER
from shared.domain.types import Plan, PlanSource
from shared.runtime import animated_png
from shared.runtime.settings import Settings

OBJECT_RGB, BACKGROUND_RGB = (240, 170, 40), (40, 110, 170)
"""Cells of the object and of the background; cells of neither are black."""


class PairMasks(NamedTuple):
    """Pictures of the masks of both sources, and of what the start takes from each: (F, h, w, 3), one pixel a cell."""

    object: npt.NDArray[np.uint8]
    """Both masks of the clip that gives the object."""
    background: npt.NDArray[np.uint8]
    """Both masks of the clip that gives the background."""
    taken: npt.NDArray[np.uint8]
    """Cells from the object's clip in its colour, the others in the background's."""


async def pair_masks(blobs: Blobs, plan: Plan) -> PairMasks | None:
    """Return pictures of a stitched plan's masks; None for other plans, and where the masks cannot be read any more."""
    if plan.source is not PlanSource.STITCHED:
        return None
    try:
        read = [unpack(await blobs.get(one.mask_key, one.mask_sha256)) for one in plan.sources]
    except AfterimageError:
        return None
    return painted_pair(read)


def painted_pair(masks: Sequence[tuple[Bits, Bits]]) -> PairMasks:
    """Return the pictures. masks: of object and background, (F, h, w) each, of both sources."""
    (thing, around), (other, place) = masks
    taken = taken_cells(thing, place)
    return PairMasks(_painted(thing, around), _painted(other, place), _painted(taken, ~taken))


def _painted(thing: Bits, place: Bits) -> npt.NDArray[np.uint8]:
    frames = np.zeros((*thing.shape, 3), np.uint8)
    frames[place], frames[thing] = BACKGROUND_RGB, OBJECT_RGB
    return frames


def animation(frames: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture of each frame, one pixel a cell, as an animated PNG."""
    return animated_png.encode([Image.fromarray(frame) for frame in frames])


async def masks_here(settings: Settings, plan: Plan, target: str | None) -> PairMasks | None:
    """Return pictures of a stitched plan's masks from the blob store of the settings; None with a `target`, whose store
    may be another."""
    if target or plan.source is not PlanSource.STITCHED:
        return None
    try:
        from shared.service.backends import blobs_of

        blobs = await blobs_of(settings)
    except (AfterimageError, ModuleNotFoundError):  # a client alone has not the packages that read the store
        return None
    try:
        return await pair_masks(blobs, plan)
    finally:
        await blobs.close()


def pair_table(plan: Plan, masks: PairMasks | None) -> Table:
    """Return a table of a stitched start: both entries, and the masks of the middle frame."""
    table = Table(title="Stitched start", box=None, title_justify="left", padding=(0, 2, 0, 0))
    for name in ("object's clip", "background's clip", "stitched"):
        table.add_column(name)
    table.add_row(*(Text(one.entry_id or ANOTHER) for one in plan.sources), Text("cells of each clip"))
    if masks is not None:
        table.add_row(*(half_blocks(Image.fromarray(frames[len(frames) // 2])) for frames in masks))
    return table
