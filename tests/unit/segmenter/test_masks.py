"""Masks on the latent grid: which cells hold, which frames share one, and what becomes of empty masks."""

from __future__ import annotations

import numpy as np
import pytest

from services.segmenter.masks import Grid, Unmasked, packed_masks
from shared.domain.latent_cells import both_masks, on_cells
from shared.domain.masks import unpack
from shared.models.card import FrameRule, ModelCard


def test_a_cell_holds_from_half_of_its_pixels_on() -> None:
    mask = np.zeros((1, 4, 8), dtype=np.bool_)
    mask[0, :2, :4] = True  # 8 of 16
    mask[0, :2, 4:7] = True  # 6 of 16
    assert on_cells(mask, 4).tolist() == [[[True, False]]]
    assert on_cells(mask, 4, least=0.3).tolist() == [[[True, True]]]
    assert on_cells(mask, 1).tolist() == mask.tolist()


def test_the_first_latent_frame_stands_for_one_frame_and_later_ones_for_several() -> None:
    mask = np.zeros((9, 2, 2), dtype=np.bool_)
    mask[0] = True
    mask[3:5] = True  # half of frames 1 … 4
    assert on_cells(mask, 2, 4)[:, 0, 0].tolist() == [True, True, False]


@pytest.mark.parametrize(("shape", "every"), [((2, 4, 4), 4), ((1, 6, 4), 1), ((1, 4, 6), 1)])
def test_parts_of_cells_are_refused(shape: tuple[int, int, int], every: int) -> None:
    with pytest.raises(ValueError, match="multiples"):
        on_cells(np.zeros(shape, dtype=np.bool_), 4, every)


def test_a_pixel_belongs_to_one_phrase() -> None:
    first = np.array([[[0.9, 0.6, 0.5, 0.2]]], dtype=np.float32)
    second = np.array([[[0.1, 0.7, 0.5, 0.4]]], dtype=np.float32)
    own, place = both_masks(first, second, 0.5)
    assert own.tolist() == [[[True, False, True, False]]]
    assert place.tolist() == [[[False, True, False, False]]]


def shares(own: float, place: float) -> np.ndarray:
    """The object's probability in the left half, the background's in the right half."""
    found = np.zeros((2, 1, 8, 8), dtype=np.float32)
    found[0, ..., :4], found[1, ..., 4:] = own, place
    return found


def test_packed_masks_and_the_reasons_for_none() -> None:
    grid = Grid.of(ModelCard("m", vae_scale=4, frames=FrameRule(5, 9, multiple_of=4, per_latent=4)))
    assert grid == Grid(4, 4)
    packed = packed_masks(shares(0.9, 0.8), grid, 0.5)
    assert isinstance(packed, bytes)
    own, place = unpack(packed)
    assert own.tolist() == [[[True, False]] * 2]
    assert place.tolist() == [[[False, True]] * 2]
    assert packed_masks(shares(0.4, 0.8), grid, 0.5) is Unmasked.NO_OBJECT
    assert packed_masks(shares(0.9, 0.4), grid, 0.5) is Unmasked.NO_BACKGROUND
    assert packed_masks(shares(0.9, 0.8), Grid(3), 0.5) is Unmasked.NO_GRID


def test_latent_frames_of_a_vae_that_decodes_pairs() -> None:
    card = ModelCard("m", frames=FrameRule(9, 17, multiple_of=8, per_latent=4))
    assert Grid.of(card).per_latent == 4
    with pytest.raises(ValueError, match="per_latent"):
        ModelCard("m", frames=FrameRule(9, 17, multiple_of=8, per_latent=3))
