"""In which dtype weights are loaded, and where they wait: settings that change what happens, never what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.events import Finished
from services.gpu_worker.engine.rows import FromPicture
from services.gpu_worker.families import load_family, offload
from shared.domain.errors import ModelError
from shared.models import find_card
from shared.models.card_lookup import card_for
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.families.conftest import CLIPS, LoadTiny, a_picture, a_task, drawn

FAMILIES = ["sdxl", "sd3", "flux-dev", "sana", *CLIPS]


def crowd() -> list[Any]:
    return [a_task("noise", steps=3), a_task("picture", steps=4, start=FromPicture(a_picture(a_task().size), 2))]


@pytest.fixture(scope="module")
def plain(tiny_family: LoadTiny) -> Callable[[str], dict[str, Finished]]:
    """What a family that stays on its device makes of the crowd."""
    return cache(lambda name: drawn(tiny_family(name), *crowd()))


@pytest.mark.parametrize("offload", ["model", "sequential"])
@pytest.mark.parametrize("name", FAMILIES)
def test_offloading_changes_no_bit(
    tiny_family: LoadTiny, plain: Callable[[str], dict[str, Finished]], name: str, offload: str
) -> None:
    placed = drawn(tiny_family(name, offload=offload), *crowd())
    for task in crowd():
        assert np.array_equal(placed[task.id].latent, plain(name)[task.id].latent)
        assert np.array_equal(placed[task.id].pixels, plain(name)[task.id].pixels)


def test_parts_take_turns_on_the_device(
    saved: Callable[[str], Path], tiny_family: LoadTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = load_family(find_card(str(saved("sd3"))), offload="model")
    assert isinstance(family, type(tiny_family("sd3")))
    names = {id(part): part_name for part_name, part in family.pipeline.components.items()}
    host, moves = torch.device("cpu"), []
    # the CPU stands for both sides here: what is recorded is which component was sent where, in which order
    monkeypatch.setattr(family._residence, "_device", torch.device("cpu", 0))
    original = torch.nn.Module.to

    def spied(self: torch.nn.Module, *to: Any, **options: Any) -> Any:
        if id(self) in names:
            moves.append((names[id(self)], "out" if to == (host,) else "in"))
        return original(self, *to, **options)

    monkeypatch.setattr(torch.nn.Module, "to", spied)
    drawn(family, a_task(steps=2))
    encoders = ["text_encoder", "text_encoder_2", "text_encoder_3"]
    assert moves == [
        *((encoder, "in") for encoder in encoders),
        *((encoder, "out") for encoder in encoders),
        ("transformer", "in"),
        ("transformer", "out"),
        ("vae", "in"),
    ]
    assert family._residence.here == "vae"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_is_there_only_while_it_runs(
    saved: Callable[[str], Path],
    plain: Callable[[str], dict[str, Finished]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Weights that are away are made nan: whoever read one outside its layer's forward would draw nothing."""
    monkeypatch.setattr(
        offload, "placeholder", lambda host: host.new_full(host.shape, torch.nan) if host.is_floating_point() else host
    )
    family: Any = load_family(find_card(str(saved(name))), offload="sequential")
    layers = [module for module in family.denoiser.modules() if isinstance(module, torch.nn.Linear)]
    assert layers
    here: list[int] = []

    def count(*_: Any) -> None:
        here.append(sum(not layer.weight.isnan().any() for layer in layers))

    layers[0].register_forward_pre_hook(count)
    layers[-1].register_forward_hook(count)
    away = drawn(family, *crowd())
    assert set(here) == {1, 0}  # inside the first; after the last
    for task in crowd():
        assert np.array_equal(away[task.id].latent, plain(name)[task.id].latent)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_dtype_is_what_weights_are_loaded_in(saved: Callable[[str], Path], name: str) -> None:
    settings = Settings(large=str(saved(name)), dtype="bfloat16")
    card = card_for(settings.large, settings)
    family: Any = load_family(card)
    assert {p.dtype for p in family.denoiser.parameters()} == {torch.bfloat16}
    assert family.memory_bytes == load_family(replace(card, dtype="float32")).memory_bytes / 2
    picture = drawn(family, a_task(steps=2))["a"]
    assert picture.latent.dtype == np.float32
    assert np.isfinite(picture.latent).all()
    assert card.compat(a_task().size, 2).dtype == "bfloat16"
    assert card_for(settings.large, Settings(dtype="auto")).dtype == "float32"  # the card's own


def test_a_vae_that_overflows_in_half_precision_stays_in_float32(saved: Callable[[str], Path]) -> None:
    family: Any = load_family(replace(find_card(str(saved("sdxl"))), dtype="float16"))
    assert (family.denoiser.dtype, family.pipeline.vae.dtype) == (torch.float16, torch.float32)
    with torch.inference_mode():
        assert family.decode(torch.zeros(4, 8, 8)).shape == (16, 16, 3)


def test_a_family_refuses_another_familys_weights(saved: Callable[[str], Path]) -> None:
    card = replace(find_card(str(saved("sd3"))), family="flux")
    with pytest.raises(ModelError, match=r"family 'flux' runs FluxPipeline \(got StableDiffusion3Pipeline\)"):
        load_family(card)
    known = "unet, sd3, flux, sana, animatediff, text_to_video, wan, ltx, cogvideox, noop"
    with pytest.raises(ModelError, match=f"family must be one of {known}"):
        load_family(replace(card, family="video"))
