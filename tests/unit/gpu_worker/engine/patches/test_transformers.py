"""One forward pass of whole transformers: packed tokens equal whole images, for random mixes of sizes."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from diffusers.models.attention_processor import FusedJointAttnProcessor2_0
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.gpu_worker.engine.patches.batch import Current, PatchBatch
from services.gpu_worker.engine.patches.layout import layout_of
from services.gpu_worker.engine.patches.packed_transformer import PackedTransformer, wrap_modules
from tests import tiny_families
from tests.tiny_parts import WIDTH
from tests.unit.gpu_worker.engine.patches.conftest import CPU, Grids, error, grids, images_of

MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sd3": ("sd3", 2, {}),
    "sd3.5": ("sd3", 2, {"dual_attention_layers": (0,)}),
    "sd3-no-norm": ("sd3", 2, {"qk_norm": None, "patch_size": 2}),
    "flux-dev": ("flux", 2, {"num_single_layers": 2}),
    "flux-schnell": ("flux", 2, {"guidance_embeds": False}),
    "sana": ("sana", 1, {}),
    "sana-positions": ("sana", 2, {"qk_norm": "rms_norm_across_heads", "interpolation_scale": 1, "patch_size": 2}),
}
"""Family, latent cells per side of a token, and choices."""
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""In standard deviations of the whole output; whole images in half precision are further off the exact output."""
TOKENS = 6


def run(model: Any, latents: Tensor, of: list[int]) -> Tensor:
    """Run on (B, C, h, w), or on patches, with the timesteps, texts and guidance of the requests `of`."""
    generator = torch.Generator().manual_seed(5)
    text, pooled, t = (torch.randn(16, *rest, generator=generator)[of] for rest in ((TOKENS, WIDTH), (WIDTH,), ()))
    text, pooled, times = text.to(latents), pooled.to(latents), t.sigmoid().to(latents)
    kind = type(model).__name__
    if kind == "SD3Transformer2DModel":
        return model(latents, text, pooled, times * 1000, return_dict=False)[0]
    if kind == "SanaTransformer2DModel":
        mask = (torch.arange(TOKENS) <= torch.arange(16)[:, None] % TOKENS).int()[of]
        return model(latents, text, times * 1000, encoder_attention_mask=mask, return_dict=False)[0]
    count, channels, height, width = latents.shape
    places = FluxPipeline._prepare_latent_image_ids(1, height // 2, width // 2, CPU, latents.dtype)
    out = model(
        FluxPipeline._pack_latents(latents, count, channels, height, width),
        text,
        pooled,
        times,
        places,
        torch.zeros(TOKENS, 3),
        1 + pooled[:, 0].abs() if model.config.guidance_embeds else None,
        return_dict=False,
    )[0]
    return FluxPipeline._unpack_latents(out, height * 2, width * 2, 2)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_one_forward_pass(name: str, dtype: torch.dtype) -> None:
    family, unit, choices = MODELS[name]
    torch.manual_seed(0)
    model, current = tiny_families.FAMILIES[family](**choices).transformer.to(dtype), Current()
    before = {key: value.data_ptr() for key, value in model.state_dict().items()}
    stock = deepcopy(model)
    wrap_modules(model, current)
    assert {key: value.data_ptr() for key, value in model.state_dict().items()} == before  # names kept, weights shared
    bound = 1e-6 if family == "sana" and dtype == torch.float64 else BOUNDS[dtype]  # linear attention is in float32
    channels = 8 if family == "sana" else 16

    @settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(mix=grids(most=4), times=st.integers(1, 4), seed=st.integers(0, 99))
    def equal(mix: Grids, times: int, seed: int) -> None:
        images = [image.to(dtype) for image in images_of(mix, unit * times, channels, seed)]
        want = [run(stock, image[None], [i])[0] for i, image in enumerate(images)]
        shapes = [(image.shape[1] // unit, image.shape[2] // unit) for image in images]
        side = math.gcd(*(tokens for shape in shapes for tokens in shape))
        current.batch = batch = PatchBatch(layout_of(shapes, side), CPU)
        out = batch.join(run(model, batch.split(images), list(batch.layout.order)))
        current.batch = None
        assert error([each.double() for each in out], [each.double() for each in want]) < bound

    with torch.inference_mode():
        equal()


def test_attention_of_an_unknown_kind_is_refused() -> None:
    model = tiny_families.sd3().transformer
    model.set_attn_processor(FusedJointAttnProcessor2_0())
    with pytest.raises(ValueError, match="not run on packed tokens: FusedJointAttnProcessor2_0"):
        PackedTransformer(model, 2)
