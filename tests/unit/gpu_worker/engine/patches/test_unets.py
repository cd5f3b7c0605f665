"""One forward pass of whole UNets: patches equal whole images, for random mixes of sizes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.gpu_worker.engine.patches.batch import Current
from services.gpu_worker.engine.patches.operators import replace_operators
from shared.models import find_card
from tests import tiny_families
from tests.tiny_parts import WIDTH
from tests.unit.gpu_worker.engine.patches.conftest import Grids, batch_of, error, grids, images_of

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10, torch.float16: 1e-2}
"""In standard deviations of the whole output."""


def run(unet: Any, xl: bool, latents: Tensor, of: list[int]) -> Tensor:
    """Run with the timestep and prompt of request of[i] in row i."""
    generator = torch.Generator().manual_seed(5)
    timesteps = torch.randint(0, 1000, (16,), generator=generator)
    texts = torch.randn(16, 7, unet.config.cross_attention_dim, generator=generator).to(latents)
    pooled = torch.randn(16, WIDTH, generator=generator).to(latents)
    ids = torch.randint(0, 1024, (16, 6), generator=generator).to(latents)
    added = {"text_embeds": pooled[of], "time_ids": ids[of]} if xl else None
    return unet(latents, timesteps[of], texts[of], added_cond_kwargs=added, return_dict=False)[0]


def built(name: str, tiny_folder: Path) -> UNet2DConditionModel:
    torch.manual_seed(0)
    if name == "sdxl":
        return tiny_families.sdxl().unet
    if name == "sd2":  # linear projections and a number of heads per level, without SDXL's added conditioning
        return tiny_families.sdxl(addition_embed_type=None, transformer_layers_per_block=1).unet
    folder = find_card("bundled:large").folder if name == "bundled" else tiny_folder / "large"
    return UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=torch.float32).eval()


TINY = [("sd", 2), ("sd2", 2), ("sdxl", 2)]
"""Name, and fewest latent cells per side of a patch."""


@pytest.mark.parametrize(
    ("name", "least", "dtype"),
    [
        *((name, least, dtype) for name, least in TINY for dtype in BOUNDS),
        *(("bundled", 4, dtype) for dtype in (torch.float32, torch.float64)),
    ],
    ids=str,
)
def test_one_forward_pass(name: str, least: int, dtype: torch.dtype, tiny_folder: Path) -> None:
    unet, current = built(name, tiny_folder).to(dtype), Current()
    before = {key: value.data_ptr() for key, value in unet.state_dict().items()}
    stock = deepcopy(unet)
    replace_operators(unet, current)
    assert {key: value.data_ptr() for key, value in unet.state_dict().items()} == before  # names kept, weights shared

    # the same examples in every run: in float32, whole images alone are up to 5e-6 off the exact output
    @settings(max_examples=5, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(mix=grids(most=4), times=st.integers(1, 2), seed=st.integers(0, 99))
    def equal(mix: Grids, times: int, seed: int) -> None:
        side = least * times  # at `least`, the lowest level has patches of one cell
        images = [image.to(dtype) for image in images_of(mix, side, 4, seed)]
        want = [run(stock, name == "sdxl", image[None], [i])[0] for i, image in enumerate(images)]
        current.batch = batch = batch_of(images, side)
        of = [batch.layout.order[request] for request in batch.layout.requests]
        out = batch.join(run(unet, name == "sdxl", batch.split(images), of))
        current.batch = None
        assert error([each.double() for each in out], [each.double() for each in want]) < BOUNDS[dtype]

    with torch.inference_mode():
        equal()
