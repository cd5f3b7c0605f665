"""The tiny model with reuse between steps, as whole images and in patches, and policies that decide one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.families import load_family
from services.gpu_worker.families.unet import UNetFamily
from shared.models import find_card

LAYOUTS = ("groups", "patches")


@dataclass
class Decided:
    """Reuses as `rule` says, given the block and the patches' numbers in the batch; records what it was asked."""

    rule: Callable[[int, np.ndarray], np.ndarray]
    most: int = 100
    asked: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)
    """(block, reuses in a row, changes) of each decision."""

    def reused(self, block: int, timesteps: Any, in_a_row: np.ndarray, changes: Any) -> np.ndarray:
        self.asked.append((block, in_a_row.copy(), np.asarray(changes).copy()))
        return self.rule(block, np.arange(len(in_a_row))) & (in_a_row < self.most)


def never() -> Decided:
    return Decided(lambda _, places: np.zeros(len(places), dtype=bool))


def always(most: int = 100) -> Decided:
    return Decided(lambda _, places: np.ones(len(places), dtype=bool), most)


def odd_patches() -> Decided:
    return Decided(lambda block, places: (places + block) % 2 == 1, 2)


@pytest.fixture(scope="module")
def by_layout(tiny_folder: Path) -> dict[str, UNetFamily]:
    found = {layout: load_family(find_card(str(tiny_folder / "large")), layout=layout) for layout in LAYOUTS}
    return {layout: family for layout, family in found.items() if isinstance(family, UNetFamily)}


@pytest.fixture(params=LAYOUTS)
def reusing(request: pytest.FixtureRequest, by_layout: dict[str, UNetFamily]) -> Iterator[UNetFamily]:
    """The family of each layout; reuse is off again after the test."""
    found = by_layout[request.param]
    yield found
    found.reuse_blocks(None)
