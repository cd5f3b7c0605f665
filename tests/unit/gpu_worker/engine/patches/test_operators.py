"""Every operator on patches equals the stock module on whole images, for random mixes of sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from diffusers.models.attention_processor import Attention
from diffusers.models.downsampling import Downsample2D
from diffusers.models.upsampling import Upsample2D
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from services.gpu_worker.engine.patches.batch import Current
from services.gpu_worker.engine.patches.operators import (
    REPLACED,
    PatchedAttention,
    PatchedConv2d,
    PatchedConvTranspose2d,
    PatchedGroupNorm,
    replace_operators,
)
from tests.unit.gpu_worker.engine.patches.conftest import Grids, batch_of, each_alone, error, grids, images_of

BOUND = 1e-5
"""In standard deviations of the whole output, float32."""
few = settings(max_examples=25)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    """Any convolution whose output has 1/stride of the cells, each way with numbers of its own."""
    numbers = itertools.product(range(1, 6), range(1, 4), range(8), range(1, 4))
    kept = [each for each in numbers if _keeps(*each)]
    kernel, stride, padding, dilation = zip(draw(st.sampled_from(kept)), draw(st.sampled_from(kept)), strict=True)
    groups, bias = draw(st.sampled_from([1, 2])), draw(st.booleans())
    return nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups, bias)


def _keeps(kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether 12 and 18 cells become 1/stride as many."""
    reach = dilation * (kernel - 1) + 1
    return all((n + 2 * padding - reach) // stride + 1 == n // stride and n + 2 * padding >= reach for n in (12, 18))


@few
@given(conv=convolutions(), mix=grids(), times=st.integers(1, 2), seed=st.integers(0, 99))
def test_convolutions(conv: nn.Conv2d, mix: Grids, times: int, seed: int) -> None:
    side = math.lcm(*conv.stride) * times
    images = images_of(mix, side, 4, seed)
    batch = batch_of(images, side)
    patched = PatchedConv2d(conv, Current(batch))
    assert patched.weight is conv.weight
    out = patched(batch.split(images))
    want = each_alone(conv, images)
    assert error(_joined(out, want, mix, batch.layout.order), want) < BOUND


def _joined(out: torch.Tensor, want: list[torch.Tensor], mix: Grids, order: tuple[int, ...]) -> list[torch.Tensor]:
    """Put patches together one by one: the sides of a patch may differ after a convolution."""
    patches, images = iter(out), dict[int, torch.Tensor]()
    for i in order:
        rows = [torch.cat([next(patches) for _ in range(mix[i][1])], dim=2) for _ in range(mix[i][0])]
        images[i] = torch.cat(rows, dim=1)
    assert [images[i].shape for i in range(len(mix))] == [each.shape for each in want]
    return [images[i] for i in range(len(mix))]


@few
@given(padding=st.sampled_from(["same", 1]), kernel=st.sampled_from([2, 3, 4]))
def test_named_padding(padding: str | int, kernel: int) -> None:
    if padding == 1 and kernel != 3:
        with pytest.raises(ValueError, match="keep 1/stride of the cells"):
            PatchedConv2d(nn.Conv2d(4, 4, kernel, padding=padding), Current())
        return
    conv = nn.Conv2d(4, 4, kernel, padding=padding)
    images = images_of([(2, 1), (1, 3)], 2, 4, seed=0)
    batch = batch_of(images, 2)
    out = batch.join(PatchedConv2d(conv, Current(batch))(batch.split(images)))
    assert error(out, each_alone(conv, images)) < BOUND


@st.composite
def transposed(draw: st.DrawFn) -> nn.ConvTranspose2d:
    """Any transposed convolution whose output has `stride` times the cells, each way with numbers of its own."""
    numbers = itertools.product(range(1, 6), range(1, 4), range(8), range(3), range(1, 4))
    spread = [
        (kernel, stride, padding, extra, dilation)
        for kernel, stride, padding, extra, dilation in numbers
        if dilation * (kernel - 1) + 1 + extra - 2 * padding == stride and extra < max(stride, dilation)
    ]
    found = zip(draw(st.sampled_from(spread)), draw(st.sampled_from(spread)), strict=True)
    kernel, stride, padding, extra, dilation = found
    groups, bias = draw(st.sampled_from([1, 2])), draw(st.booleans())
    return nn.ConvTranspose2d(4, 6, kernel, stride, padding, extra, groups, bias, dilation)


@few
@given(conv=transposed(), mix=grids(), side=st.integers(1, 3), seed=st.integers(0, 99))
def test_transposed_convolutions(conv: nn.ConvTranspose2d, mix: Grids, side: int, seed: int) -> None:
    images = images_of(mix, side, 4, seed)
    batch = batch_of(images, side)
    out = PatchedConvTranspose2d(conv, Current(batch))(batch.split(images))
    want = each_alone(conv, images)
    assert error(_joined(out, want, mix, batch.layout.order), want) < BOUND


def test_a_transposed_convolution_that_gives_other_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="must give `stride` times the cells"):
        PatchedConvTranspose2d(nn.ConvTranspose2d(4, 4, 3, 2), Current())


def test_padding_other_than_zeros_is_refused() -> None:
    with pytest.raises(ValueError, match="padded with zeros"):
        PatchedConv2d(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), Current())


@few
@given(mix=grids(), affine=st.booleans(), offset=st.sampled_from([0.0, 30.0]), seed=st.integers(0, 99))
def test_group_norm_sees_the_whole_image(mix: Grids, affine: bool, offset: float, seed: int) -> None:
    norm = nn.GroupNorm(2, 8, affine=affine)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    # a patch differs from its image in mean and spread
    images = [image * torch.linspace(0, 3, image.shape[-1]) + offset for image in images_of(mix, 4, 8, seed)]
    batch = batch_of(images, 4)
    out = batch.join(PatchedGroupNorm(norm, Current(batch))(batch.split(images)))
    # in double precision, since float32 itself loses as much at a large mean
    want = each_alone(norm.double(), [image.double() for image in images])
    assert error(out, want) < BOUND


def test_group_norm_in_half_precision_computes_in_float32() -> None:
    norm = nn.GroupNorm(2, 8)
    images = [image * 100 + 1000 for image in images_of([(2, 2), (1, 2)], 4, 8, seed=1)]  # squares overflow float16
    batch = batch_of(images, 4)
    out = batch.join(PatchedGroupNorm(norm.half(), Current(batch))(batch.split([image.half() for image in images])))
    assert out[0].dtype == torch.float16
    want = each_alone(norm.float(), [image.half().float() for image in images])
    assert error([each.float() for each in out], want) < 2e-3


@few
@given(mix=grids(), cross=st.booleans(), seed=st.integers(0, 99))
def test_attention(mix: Grids, cross: bool, seed: int) -> None:
    attn = Attention(8, cross_attention_dim=6 if cross else None, heads=2, dim_head=4, bias=True)
    images = images_of(mix, 2, 8, seed)
    texts = torch.randn(len(mix), 5, 6) if cross else None
    want = [
        attn(image.flatten(1).T[None], None if texts is None else texts[i, None])[0].T.view_as(image)
        for i, image in enumerate(images)
    ]
    batch = batch_of(images, 2)
    attn.set_processor(PatchedAttention(attn.processor, Current(batch)))
    order = torch.tensor(batch.layout.order)
    said = None if texts is None else texts[order[batch.requests]]
    tokens = batch.split(images).flatten(2).transpose(1, 2)
    out = attn(tokens, said).transpose(1, 2).reshape(-1, 8, 2, 2)
    assert error(batch.join(out), want) < BOUND


@few
@given(mix=grids(), seed=st.integers(0, 99))
def test_sampling_down_and_up(mix: Grids, seed: int) -> None:
    """Diffusers' own modules, with their convolutions replaced."""
    for module in (
        Downsample2D(4, use_conv=True),
        Upsample2D(4, use_conv=True),
        Upsample2D(4, use_conv_transpose=True),
    ):
        images = images_of(mix, 4, 4, seed)
        want = each_alone(module, images)
        batch = batch_of(images, 4)
        module.conv = REPLACED[type(module.conv)](module.conv, Current(batch))
        assert error(batch.join(module(batch.split(images))), want) < BOUND


def test_modules_that_see_other_cells_are_refused() -> None:
    for module in (nn.Bilinear(4, 4, 2), nn.AvgPool2d(3, 1), Downsample2D(4, use_conv=True, padding=0)):
        with pytest.raises(ValueError, match=f"do not run on patches: {type(module).__name__}"):
            replace_operators(nn.ModuleList([module]), Current())


def test_an_attention_with_a_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="do not run on patches: Attention"):
        replace_operators(nn.ModuleList([Attention(8, heads=2, dim_head=4, norm_num_groups=2)]), Current())
