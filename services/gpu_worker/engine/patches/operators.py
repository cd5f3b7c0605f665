"""Operators of a UNet that see whole images through their patches (PatchedServe §4.2), for stock diffusers modules.

Linear layers, feed-forward, activations, time embedding and nearest upsampling see one cell at a time, and run on
patches unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from services.gpu_worker.engine.patches.batch import Current, Halo
from services.gpu_worker.engine.patches.stitcher import StitchedResnetBlock, fuses

RUN_ON_PATCHES = frozenset(
    {
        *("UNet2DConditionModel", "DownBlock2D", "CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn"),
        *("CrossAttnUpBlock2D", "UpBlock2D", "ResnetBlock2D", "Downsample2D", "Upsample2D"),
        *("Transformer2DModel", "BasicTransformerBlock", "FeedForward", "GEGLU", "Attention"),
        *("Timesteps", "TimestepEmbedding", "TextTimeEmbedding", "AttentionPooling"),
        *(
            "ModuleList",
            "Conv2d",
            "ConvTranspose2d",
            "GroupNorm",
            "Linear",
            "LayerNorm",
            "Dropout",
            "SiLU",
            "GELU",
            "Identity",
        ),
    }
)
"""Types of modules that run on patches once convolutions, GroupNorms and attention are replaced."""


class PatchedConv2d(nn.Conv2d):
    """A convolution of any kernel, stride, padding and dilation whose output has 1/stride of the input's cells.

    Each patch is widened by cells of its neighbours; beyond the image's border they are zeros. The sides of patches
    must be multiples of the stride.
    """

    def __init__(self, conv: nn.Conv2d, current: Current) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            conv.bias is not None,
            conv.padding_mode,
            device="meta",
        )
        self.weight, self.bias = conv.weight, conv.bias
        self._current = current
        self.halo: Halo = (*halo(conv, 0), *halo(conv, 1))

    def forward(self, input: Tensor) -> Tensor:
        if self._current.batch is None:
            return super().forward(input)
        return self.on_wide(self._current.batch.with_halo(input, *self.halo) if any(self.halo) else input)

    def on_wide(self, wide: Tensor) -> Tensor:
        """Convolve patches that have their halo."""
        return F.conv2d(wide, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def halo(conv: nn.Conv2d, axis: int) -> tuple[int, int]:
    """Return the neighbours' cells that a patch needs before and after its own, along one axis.

    Raises ValueError where the output of a convolution has not 1/stride of the input's cells, or its padding is not
    zeros.
    """
    stride, reach = conv.stride[axis], conv.dilation[axis] * (conv.kernel_size[axis] - 1)
    before, padded = _padding(conv, axis, reach)
    # a row of n cells gives floor((n + padded − reach − 1) / stride) + 1; it must be n / stride
    if conv.padding_mode != "zeros" or not -stride <= padded - reach - 1 < 0:
        raise ValueError(f"a convolution must keep 1/stride of the cells, padded with zeros (got {conv})")
    return before, max(reach + 1 - stride - before, 0)


def _padding(conv: nn.Conv2d, axis: int, reach: int) -> tuple[int, int]:
    """Return the cells of padding before an image, and those before and after it together."""
    if conv.padding == "same":
        return reach // 2, reach
    if conv.padding == "valid":
        return 0, 0
    return int(conv.padding[axis]), 2 * int(conv.padding[axis])


class PatchedConvTranspose2d(nn.ConvTranspose2d):
    """A transposed convolution of any kernel, padding and dilation whose output has `stride` times the input's cells.

    Raises ValueError for another output.
    """

    def __init__(self, conv: nn.ConvTranspose2d, current: Current) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.output_padding,  # type: ignore[arg-type]
            conv.groups,
            conv.bias is not None,
            conv.dilation,  # type: ignore[arg-type]
            device="meta",
        )
        self.weight, self.bias = conv.weight, conv.bias
        self._current = current
        self._axes = [_spread(conv, 0), _spread(conv, 1)]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if self._current.batch is None:
            return super().forward(input, output_size)
        wide = self._current.batch.with_halo(input, *self._axes[0][:2], *self._axes[1][:2])
        padding, stride = self.output_padding, self.stride
        out = F.conv_transpose2d(wide, self.weight, self.bias, stride, 0, padding, self.groups, self.dilation)
        for axis, (_, _, first) in enumerate(self._axes):
            out = out.narrow(2 + axis, first, input.shape[2 + axis] * stride[axis])
        return out


def _spread(conv: nn.ConvTranspose2d, axis: int) -> tuple[int, int, int]:
    """Return the neighbours' cells that a patch needs before and after its own, and the first cell of its own output,
    along one axis. Raises ValueError where the output has not `stride` times the cells."""
    stride, padding = conv.stride[axis], int(conv.padding[axis])
    reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1)
    # a row of n cells gives (n − 1) · stride − 2 · padding + reach + output_padding + 1; it must be n · stride
    if reach + 1 + conv.output_padding[axis] - 2 * padding != stride:
        raise ValueError(f"a transposed convolution must give `stride` times the cells (got {conv})")
    before = max((reach - padding) // stride, 0)
    return before, -(-padding // stride), padding + before * stride


class PatchedGroupNorm(nn.GroupNorm):
    """GroupNorm with mean and variance over the whole image of each request, in two passes, in float32 or better."""

    def __init__(self, norm: nn.GroupNorm, current: Current) -> None:
        super().__init__(norm.num_groups, norm.num_channels, norm.eps, norm.affine, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self._current = current

    def forward(self, input: Tensor) -> Tensor:
        if (batch := self._current.batch) is None:
            return super().forward(input)
        dtype = torch.promote_types(input.dtype, torch.float32)
        grouped = input.to(dtype).reshape(len(input), self.num_groups, -1)  # (P, groups, values)
        centred = grouped - batch.image_mean(grouped.mean(-1, keepdim=True))
        variance = batch.image_mean(torch.linalg.vecdot(centred, centred)[..., None] / centred.shape[-1])
        scale = (variance + self.eps).rsqrt()
        scale = scale.repeat_interleave(self.num_channels // self.num_groups, 1)  # (P, C, 1)
        centred = centred.reshape(len(input), self.num_channels, -1)
        if not self.affine:
            return (centred * scale).view_as(input).to(input.dtype)
        normal = torch.addcmul(self.bias.to(dtype)[:, None], centred, scale * self.weight.to(dtype)[:, None])
        return normal.view_as(input).to(input.dtype)


class PatchedAttention:
    """Attention processor: self-attention and cross-attention over the images of each resolution.

    Attention does not depend on the order of the cells, so images need not be put together: the patches of a
    resolution, which follow each other, are viewed as images. The text of each request is projected once.
    """

    def __init__(self, whole: Any, current: Current) -> None:
        self._whole = whole
        """The processor for whole images."""
        self._current = current

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, *rest: Any, **named: Any
    ) -> Tensor:
        """Attend from patches (P, n, width) to their own images, or to (P, tokens, width) of their requests."""
        if (batch := self._current.batch) is None:
            whole: Tensor = self._whole(attn, hidden_states, encoder_hidden_states, *rest, **named)
            return whole
        query = attn.to_q(hidden_states)
        own = encoder_hidden_states is None
        read = hidden_states if encoder_hidden_states is None else batch.texts(encoder_hidden_states)
        attended = batch.attend(query, attn.to_k(read), attn.to_v(read), heads=attn.heads, own=own)
        out: Tensor = attn.to_out[1](attn.to_out[0](attended))
        return out


REPLACED: dict[type[nn.Module], Any] = {
    nn.Conv2d: PatchedConv2d,
    nn.ConvTranspose2d: PatchedConvTranspose2d,
    nn.GroupNorm: PatchedGroupNorm,
}


def replace_operators(unet: Any, current: Current) -> None:
    """Replace convolutions, GroupNorms and attention processors of a UNet2DConditionModel; weights are shared.

    Raises ValueError naming the modules that do not run on patches.
    """
    modules = dict(unet.named_modules(remove_duplicate=False))
    if unknown := sorted({type(each).__name__ for each in modules.values() if not _known(each)}):
        raise ValueError(f"modules that do not run on patches: {', '.join(unknown)}")
    replaced: dict[nn.Module, nn.Module] = {}  # diffusers registers some modules under two names
    for name, module in modules.items():
        if type(module) is ResnetBlock2D and fuses(module):
            unet.set_submodule(name, StitchedResnetBlock(module, current))
        elif type(module) in REPLACED:
            if module not in replaced:
                replaced[module] = REPLACED[type(module)](module, current)
            unet.set_submodule(name, replaced[module])
    unet.set_attn_processor({name: PatchedAttention(own, current) for name, own in unet.attn_processors.items()})


def _known(module: nn.Module) -> bool:
    """Return whether a module runs on patches once the operators are replaced."""
    kind = type(module).__name__
    if kind == "Attention":
        return _plain(module)
    if kind == "Downsample2D":
        return bool(module.padding)  # without, the module pads whole images itself
    return kind in RUN_ON_PATCHES


def _plain(attn: Any) -> bool:
    """Return whether an attention has no part beyond its projections."""
    others = "group_norm", "spatial_norm", "norm_cross", "norm_q", "norm_k", "residual_connection", "add_k_proj"
    return not any(getattr(attn, name, None) for name in others) and attn.rescale_output_factor == 1
