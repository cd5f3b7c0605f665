"""The trained denoiser of a checkpoint: all weights or LoRA adapters, and an input for self-conditioning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from services.trainer.finetuning.settings import LoraSettings
from services.trainer.finetuning.stepper import Conditions
from shared.domain.errors import ModelError

ADDED = ("text_embeds", "time_ids")
"""Conditions that SDXL's UNet reads as added_cond_kwargs."""


class CheckpointDenoiser(nn.Module):
    """A UNet or an SD 3 transformer of diffusers, unchanged but for what the settings add."""

    def __init__(
        self,
        model: Any,
        *,
        lora: LoraSettings | None = None,
        self_conditioned: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        recompute: bool = False,
    ) -> None:
        """Prepare a model in float32 for training; adapters start at seed `seed`.

        dtype: number format of the frozen weights under adapters. recompute: gradient checkpointing. Raises ModelError
        where no layer gets an adapter.
        """
        super().__init__()
        self.model = model
        self._lora = lora
        self.rounded = lora is not None and dtype != torch.float32
        """The frozen weights are not those of the checkpoint, but rounded ones."""
        self._is_unet = hasattr(model, "conv_in")
        self._narrow: nn.Conv2d | None = None
        if self_conditioned:
            self._widen()
        if lora is None:
            model.requires_grad_(True)
        else:
            model.to(dtype)
            self._adapt(lora, seed)
            if self_conditioned:
                self._input.requires_grad_(True)
                self._input.float()
        if recompute:
            model.enable_gradient_checkpointing()
        model.train()

    @property
    def self_conditioned(self) -> bool:
        return self._narrow is not None

    def denoise(
        self, noisy: torch.Tensor, timesteps: torch.Tensor, conditions: Conditions, estimate: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the prediction (B, C, h, w); see stepper.Denoiser."""
        if estimate is not None:
            noisy = torch.cat([noisy, estimate], dim=1)
        if not self._is_unet:
            return self.model(hidden_states=noisy, timestep=timesteps, **conditions, return_dict=False)[0]
        added = {name: conditions[name] for name in ADDED if name in conditions}
        return self.model(
            noisy,
            timesteps,
            encoder_hidden_states=conditions["encoder_hidden_states"],
            added_cond_kwargs=added or None,
            return_dict=False,
        )[0]

    forward = denoise

    def trainable(self) -> Mapping[str, nn.Parameter]:
        """Return the trainable parameters by their names in diffusers' model (with peft's names of adapters)."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    @contextmanager
    def as_served(self) -> Iterator[Any]:
        """Return the model as a stock pipeline runs it, in eval mode, until the block ends.

        The self-conditioned input is left out: a stock pipeline has no estimate, as the first pass of training has
        none, so the images are the same.
        """
        wide = self._input
        try:
            if self._narrow is not None:
                self._set_input(_narrowed(wide, self._narrow))
            self.model.eval()
            yield self.model
        finally:
            self._set_input(wide)
            self.model.train()

    def merge(self, original: nn.Module | None = None) -> Any:
        """Return diffusers' model with its adapters merged and its input as in the checkpoint. Training has ended.

        original: the checkpoint's model in float32, into whose weights the adapters are merged if those here are
        `rounded`.
        """
        if self._narrow is not None:
            self._set_input(_narrowed(self._input, self._narrow))
            self._narrow = None
        if self._lora is not None:
            self.model.float()
            if original is not None:
                self._take_frozen(original)
            self.model.fuse_lora()
            self.model.unload_lora()
        return self.model.eval()

    def _take_frozen(self, original: nn.Module) -> None:
        """Copy the weights of the original into the frozen ones; peft calls those of an adapted layer base_layer."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in original.named_parameters():
                layer, _, kind = name.rpartition(".")
                frozen = own[name] if name in own else own[f"{layer}.base_layer.{kind}"]
                if not frozen.requires_grad:
                    frozen.copy_(value)

    @property
    def _input(self) -> nn.Conv2d:
        found: nn.Conv2d = self.model.conv_in if self._is_unet else self.model.pos_embed.proj
        return found

    def _set_input(self, layer: nn.Conv2d) -> None:
        if self._is_unet:
            self.model.conv_in = layer
        else:
            self.model.pos_embed.proj = layer

    def _widen(self) -> None:
        """Give the first convolution as many further input channels for the estimate, with weights 0.

        Chen et al. 2022 (Analog Bits) concatenate the estimate to the noisy sample.
        """
        narrow = self._input
        wide = nn.Conv2d(
            2 * narrow.in_channels,
            narrow.out_channels,
            narrow.kernel_size,  # type: ignore[arg-type]  # a pair, as in every Conv2d that is built
            narrow.stride,  # type: ignore[arg-type]
            narrow.padding,  # type: ignore[arg-type]
            bias=narrow.bias is not None,
        )
        with torch.no_grad():
            wide.weight.zero_()
            wide.weight[:, : narrow.in_channels] = narrow.weight
            if narrow.bias is not None and wide.bias is not None:
                wide.bias.copy_(narrow.bias)
        self._narrow = narrow
        self._set_input(wide.to(narrow.weight.device).requires_grad_(narrow.weight.requires_grad))

    def _adapt(self, lora: LoraSettings, seed: int) -> None:
        from peft import LoraConfig

        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha or lora.rank,
            target_modules=list(lora.targets),
            init_lora_weights="gaussian",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self.model.add_adapter(config)
            except ValueError as error:
                raise ModelError(f"lora.targets: no layer of the model has such a name ({error})") from error
        for parameter in self.trainable().values():
            parameter.data = parameter.data.float()


def _narrowed(wide: nn.Conv2d, narrow: nn.Conv2d) -> nn.Conv2d:
    """Return the layer `narrow` with the weights of `wide` for its own input channels."""
    with torch.no_grad():
        narrow.to(wide.weight.device, wide.weight.dtype)
        narrow.weight.copy_(wide.weight[:, : narrow.in_channels])
        if narrow.bias is not None and wide.bias is not None:
            narrow.bias.copy_(wide.bias)
    return narrow
