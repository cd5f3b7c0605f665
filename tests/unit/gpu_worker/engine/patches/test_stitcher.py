"""The boundary stitcher gives what GroupNorm, SiLU and the halo give one by one.

As it is, these tests run its plain torch; with triton installed and TRITON_INTERPRET=1 the kernels, in an interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers.models.resnet import ResnetBlock2D
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from services.gpu_worker.engine.patches import stitcher
from services.gpu_worker.engine.patches.batch import Current, Halo
from services.gpu_worker.engine.patches.operators import PatchedGroupNorm, replace_operators
from services.gpu_worker.engine.patches.stitcher import StitchedResnetBlock, fuses, stitched
from tests.unit.gpu_worker.engine.patches.conftest import Grids, batch_of, each_alone, error, grids, images_of

few = settings(max_examples=10)
blocks = settings(max_examples=2 if os.environ.get("TRITON_INTERPRET") == "1" else 10)
"""A block takes five seconds in the interpreter, where the kernels themselves are compared in tenths of a second."""


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or stitcher._kernels() is None,
    reason="the kernels run with triton installed and TRITON_INTERPRET=1",
)


def norm_of(channels: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(2, channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@interpreted
@few
@given(
    mix=grids(4),
    side=st.integers(2, 5),
    halo=st.tuples(*[st.integers(0, 2)] * 4),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    offset=st.sampled_from([0.0, 8.0]),
    seed=st.integers(0, 99),
)
def test_the_kernels_equal_plain_torch(
    mix: Grids, side: int, halo: Halo, dtype: torch.dtype, offset: float, seed: int
) -> None:
    # a patch differs from its image in mean and spread
    images = [image * torch.linspace(0, 3, image.shape[-1]) + offset for image in images_of(mix, side, 4, seed)]
    batch = batch_of(images, side)
    norm = PatchedGroupNorm(norm_of(4), Current(batch))
    patches = batch.split(images).to(dtype)
    out = stitched(batch, patches, norm, halo)
    want = batch.with_halo(F.silu(norm(patches.float())), *halo)
    assert (out.dtype, out.shape) == (dtype, want.shape)
    assert error([out.float()], [want]) < {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}[dtype]


@interpreted
def test_a_halo_wider_than_a_patch_is_left_to_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_of([(2, 3), (1, 1)], 1, 4, seed=0)
    batch = batch_of(images, 1)
    norm, patches = PatchedGroupNorm(norm_of(4), Current(batch)), batch.split(images)
    used: list[object] = []
    monkeypatch.setattr(stitcher._kernels(), "stitch", lambda *_: used.append(1))
    wide = stitched(batch, patches, norm, (2, 2, 2, 2))
    assert torch.equal(wide, batch.with_halo(F.silu(norm(patches)), 2, 2, 2, 2))
    assert not used
    assert stitched(batch, patches, norm, (1, 1, 1, 1)) is None
    assert used


@pytest.mark.parametrize("wider", [False, True], ids=["same width", "shortcut"])
@blocks
@given(mix=grids(4), seed=st.integers(0, 99))
def test_a_residual_block_equals_diffusers_own(mix: Grids, seed: int, wider: bool) -> None:
    block = ResnetBlock2D(
        in_channels=8, out_channels=12 if wider else 8, temb_channels=6, groups=2, groups_out=2
    ).eval()
    images = images_of(mix, 4, 8, seed)
    times = torch.randn(len(images), 6)
    want = [block(image[None], times[i : i + 1])[0] for i, image in enumerate(images)]
    current, model = Current(), nn.Sequential(block)
    replace_operators(_Unet(model), current)
    assert isinstance(model[0], StitchedResnetBlock)
    assert error(each_alone(lambda image: model[0](image, times[:1]), images[:1]), want[:1]) == 0.0  # whole, as before
    batch = current.batch = batch_of(images, 4)
    of_patches = times[list(batch.layout.order)][batch.requests]
    assert error(batch.join(model[0](batch.split(images), of_patches)), want) < 1e-5


class _Unet:
    """What `replace_operators` asks of a UNet, around any module without attention."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.attn_processors = model, dict[str, object]()

    def named_modules(self, remove_duplicate: bool = True) -> list[tuple[str, nn.Module]]:
        return [(name, each) for name, each in self._model.named_modules(remove_duplicate=remove_duplicate) if name]

    def set_submodule(self, name: str, module: nn.Module) -> None:
        self._model.set_submodule(name, module)

    def set_attn_processor(self, processors: dict[str, object]) -> None:
        assert not processors


@pytest.mark.parametrize(
    "other", [{"up": True}, {"down": True}, {"time_embedding_norm": "scale_shift"}, {"dropout": 0.1}]
)
def test_a_block_with_something_in_between_keeps_diffusers_forward(other: dict[str, object]) -> None:
    block = ResnetBlock2D(in_channels=8, temb_channels=6, groups=2, **other)
    assert not fuses(block)
    assert fuses(ResnetBlock2D(in_channels=8, temb_channels=6, groups=2))


@given(mix=grids())
def test_patches_around_lie_around(mix: Grids) -> None:
    batch = batch_of(images_of(mix, 1, 1, seed=0), 1)
    around = batch.around.numpy()
    for (first, stop), i in zip(pairwise(batch.layout.request_offsets), batch.layout.order, strict=True):
        rows, columns = mix[i]
        framed = np.pad(np.arange(first, stop).reshape(rows, columns), 1, constant_values=-1)
        for patch in range(first, stop):
            row, column = divmod(patch - first, columns)
            assert (around[patch] == framed[row : row + 3, column : column + 3].ravel()).all()
