"""A folder of weights is enough: copied elsewhere, it draws what it drew."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished
from services.gpu_worker.engine.rows import Pixels, Task
from services.gpu_worker.families import load_family
from shared.domain.types import Size
from shared.models import ModelCard, find_card
from shared.models.card_lookup import BUNDLED


def drawn(card: ModelCard) -> Pixels:
    engine = Engine({"m": load_family(card)})
    engine.submit(Task("one", "m", "a red fox in the snow", Size(96, 64), steps=2, guidance=2.5, seed=7))
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Finished):
                return event.pixels
    raise AssertionError("nothing was drawn")


@pytest.mark.parametrize("left_out", ["nothing", "card.json"])
def test_a_copy_of_a_bundled_model_draws_the_same_bits(left_out: str, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(BUNDLED / "large", copy, ignore=shutil.ignore_patterns(left_out))
    copied = drawn(find_card(str(copy)))
    assert copied.shape == (64, 96, 3)
    assert np.array_equal(copied, drawn(find_card("bundled:large")))


def test_the_vae_says_how_large_a_latent_cell_is_whatever_the_card_says(tiny_folder: Path) -> None:
    card = replace(find_card(str(tiny_folder / "large")), vae_scale=8)  # a hub id's card: written without the weights
    assert load_family(card).latent_shape(Size(96, 64)) == (4, 16, 24)


def test_the_encodings_of_a_prompt_are_kept_for_its_own_callers(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of encoding told a caller whether another one had sent the same prompt."""
    family: Any = load_family(find_card(str(tiny_folder / "large")))
    encode, encoded = family._encode_prompt, list[str]()

    def watched(prompt: str, negative: bool) -> Any:
        encoded.append(prompt)
        return encode(prompt, negative)

    monkeypatch.setattr(family, "_encode_prompt", watched)
    one, again, other = (family.encode_prompt("a fox", owner=owner) for owner in ("tenant:a", "tenant:a", "tenant:b"))
    assert one is again
    assert torch.equal(one.hidden, other.hidden)
    for owner in ("tenant:a", "tenant:b"):
        family.encode_prompt("", negative=True, owner=owner)  # the empty prompt is everybody's
    assert encoded == ["a fox", "a fox", ""]
