"""Masks of a clip on its latent grid, from the probabilities of its phrases (FlexCache §4.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.segmenter.models import Shares
from shared.domain.latent_cells import both_masks, on_cells
from shared.domain.masks import pack
from shared.models.card import ModelCard


class Unmasked(StrEnum):
    """Why a result has no masks. None of these is tried again."""

    NO_LATENTS = "no_latents"
    """The run stored no latent that masks could stitch: an exact repeat, a late start, or a request without cache."""
    NO_OBJECT = "no_object"
    """The object phrase fills no cell."""
    NO_BACKGROUND = "no_background"
    """The background phrase fills no cell."""
    NO_BLOB = "no_blob"
    """The result's blob is missing or corrupt."""
    NO_GRID = "no_grid"
    """The model that generated the result is not served any more, or its latents have no whole cells here."""
    FAILED = "failed"
    """The segmentation model failed on the result again and again."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Pixels of one latent cell, each way, and frames of one latent frame after the first."""

    cell_px: int = 1
    per_latent: int = 1

    @classmethod
    def of(cls, card: ModelCard) -> Grid:
        return cls(card.vae_scale, card.frames.per_latent)


def packed_masks(shares: Shares, grid: Grid, least: float) -> bytes | Unmasked:
    """Return the packed masks of object and background from their probabilities (2, F, H, W), or why there are none.

    A pixel belongs to the more probable phrase, if that probability is at least `least`. A cell belongs to a phrase
    that holds at least half of its pixels."""
    try:
        both = [on_cells(mask, grid.cell_px, grid.per_latent) for mask in both_masks(shares[0], shares[1], least)]
    except ValueError:
        return Unmasked.NO_GRID
    for mask, reason in zip(both, (Unmasked.NO_OBJECT, Unmasked.NO_BACKGROUND), strict=True):
        if not mask.any():
            return reason
    return pack(*both)
