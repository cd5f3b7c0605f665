"""A tiny random checkpoint, built once and loaded once per mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.gpu_worker.families import Family, load_family
from services.gpu_worker.families.unet import UNetFamily
from shared.models import find_card, tiny

torch.set_num_threads(1)

LoadFamily = Callable[[int], Family]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny"), clip=False)


@pytest.fixture(scope="session")
def load(tiny_folder: Path) -> LoadFamily:
    """The tiny model by batch_invariant; each is loaded once."""
    loaded: dict[int, Family] = {}

    def family(batch_invariant: int = 0) -> Family:
        if batch_invariant not in loaded:
            card = find_card(str(tiny_folder / "large"))
            loaded[batch_invariant] = load_family(card, batch_invariant=batch_invariant)
        return loaded[batch_invariant]

    return family


@pytest.fixture(scope="session")
def family(load: LoadFamily) -> UNetFamily:
    found = load(0)
    assert isinstance(found, UNetFamily)
    return found
