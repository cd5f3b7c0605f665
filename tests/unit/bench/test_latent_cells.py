"""The rule of half a cell's pixels has a smaller error than that of all of them."""

from __future__ import annotations

import pytest

from bench.latent_cells import RULES, errors
from services.trainer.export import shipped_autoencoder
from services.trainer.rendering.renderer import Renderer
from services.trainer.rendering.sprites import sprites_cached
from tests.unit.trainer.conftest import SPRITES


def test_cells_of_half_their_pixels_are_nearer_to_the_rendering() -> None:
    if not sprites_cached(SPRITES):
        pytest.skip(f"no sprites in {SPRITES}: they come from a package registry when training or judging runs")
    found = errors(Renderer(SPRITES), shipped_autoencoder(), count=4)
    assert set(found) == set(RULES)
    assert found[0.5] < found[1.0]
