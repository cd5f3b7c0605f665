"""A ControlNet over a locked UNet, as a trainable chain and a frozen one (Zhang et al. 2023; DiffusionPipe Table 1).

The locked UNet's encoder and middle block need no gradients: they are frozen layers and may fill bubbles. The locked
decoder has no gradients for its weights, but the ControlNet's gradients pass through it: it belongs to the backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from services.trainer.pipeline.runtime.splitting.chain import Chain, Layer
from services.trainer.pipeline.runtime.splitting.unet import (
    ADDED,
    TEXT,
    check_unet,
    down_layers,
    first_layer,
    middle_layers,
    modules_of,
    up_layers,
)
from shared.domain.errors import ModelError

LOCKED, CONTROL, RESIDUAL = "locked.", "control.", "residual."
MIDDLE_STATE = f"{LOCKED}middle"


def locked_encoder(unet: Any, name: str = "locked encoder") -> Chain:
    """Return the frozen encoder and middle block of a locked UNet: they make the locked skips, `locked.middle` and
    `locked.emb`."""
    check_unet(unet)
    if unet.encoder_hid_proj is not None:
        raise ModelError("encoder_hid_dim_type: a pipeline supports a ControlNet over UNets without it only")
    layers = [
        first_layer(unet, LOCKED, self_conditioned=False),
        *down_layers(unet, LOCKED, TEXT),
        *middle_layers(unet, LOCKED, TEXT),
    ]
    last = layers[-1]
    layers[-1] = replace(
        last, makes=(MIDDLE_STATE,), run=lambda state: {MIDDLE_STATE: last.run(state)[f"{LOCKED}hidden"]}
    )
    skips = sorted({made for layer in layers for made in layer.makes if made.startswith(f"{LOCKED}skip.")})
    return Chain(name, tuple(layers), (*skips, MIDDLE_STATE, f"{LOCKED}emb"))


def controlnet_chain(
    controlnet: Any, unet: Any, name: str = "controlnet", *, self_conditioned: bool = False, scale: float = 1.0
) -> Chain:
    """Return the backbone: the ControlNet, then the locked UNet's decoder. Inputs beside the locked encoder's outputs:
    sample, timestep, encoder_hidden_states and `hint` (B, 3, H, W), the image that controls.

    The locked UNet's parameters must not require gradients. Parameters are named as in the two models, with the
    prefixes `controlnet.` and `unet.`.
    """
    check_unet(unet)
    if not getattr(controlnet.config, "mid_block_type", None) or unet.mid_block is None:
        raise ModelError("mid_block_type: a ControlNet in a pipeline needs a middle block")
    if controlnet.config.global_pool_conditions:
        raise ModelError("global_pool_conditions: not supported in a pipeline (got true)")
    trained = [_first(controlnet, self_conditioned, scale)]
    for layer in (*down_layers(controlnet, CONTROL, TEXT), *middle_layers(controlnet, CONTROL, TEXT)):
        trained.append(_with_residual(layer, controlnet, scale))
    trained.append(_join(controlnet, scale))
    locked = up_layers(unet, LOCKED, TEXT, residual=RESIDUAL)
    layers = [layer.named("controlnet") for layer in trained] + [layer.named("unet") for layer in locked]
    return Chain(name, tuple(layers), ("prediction",))


def _first(net: Any, self_conditioned: bool, scale: float) -> Layer:
    """Return the layer of the timestep, the sample and the hint."""
    added = ADDED[net.config.addition_embed_type]

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sample, hint = state["sample"], state["hint"]
        if self_conditioned:
            sample = torch.cat([sample, state["estimate"]], dim=1)
        if net.config.controlnet_conditioning_channel_order == "bgr":
            hint = torch.flip(hint, dims=[1])
        emb = net.time_embedding(net.time_proj(state["timestep"]).to(dtype=sample.dtype), None)
        if net.config.addition_embed_type == "text":
            emb = emb + net.add_embedding(state[TEXT])
        elif added:
            times = net.add_time_proj(state["time_ids"].flatten()).reshape((state["text_embeds"].shape[0], -1))
            emb = emb + net.add_embedding(torch.concat([state["text_embeds"], times], dim=-1).to(emb.dtype))
        made = net.conv_in(sample) + net.controlnet_cond_embedding(hint)
        return {f"{CONTROL}hidden": made, f"{CONTROL}skip.0": made, f"{CONTROL}emb": emb}

    reads = ("sample", *(("estimate",) if self_conditioned else ()), "hint", "timestep", TEXT, *added)
    makes = (f"{CONTROL}hidden", f"{CONTROL}skip.0", f"{CONTROL}emb")
    modules = modules_of(net, ("time_embedding", "add_embedding", "conv_in", "controlnet_cond_embedding"))
    return _with_residual(Layer(f"{CONTROL}conv_in", reads, makes, run, modules), net, scale)


def _with_residual(layer: Layer, net: Any, scale: float) -> Layer:
    """Return a layer that makes the residual of its skip instead: the decoder reads nothing else of the ControlNet."""
    skip = next((name for name in layer.makes if name.startswith(f"{CONTROL}skip.")), None)
    if skip is None:
        return layer
    number = int(skip.rsplit(".", 1)[1])
    conv, residual = net.controlnet_down_blocks[number], f"{RESIDUAL}{number}"

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = dict(layer.run(state))
        made[residual] = conv(made.pop(skip)) * scale
        return made

    makes = (*(name for name in layer.makes if name != skip), residual)
    modules = {**layer.modules, f"controlnet_down_blocks.{number}": conv}
    return replace(layer, makes=makes, run=run, modules=modules)


def _join(net: Any, scale: float) -> Layer:
    """Return the layer that adds the ControlNet's middle to the locked one's."""

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        residual = net.controlnet_mid_block(state[f"{CONTROL}hidden"]) * scale
        return {f"{LOCKED}hidden": state[MIDDLE_STATE] + residual}

    return Layer(
        f"{CONTROL}mid_block.out",
        (f"{CONTROL}hidden", MIDDLE_STATE),
        (f"{LOCKED}hidden",),
        run,
        {"controlnet_mid_block": net.controlnet_mid_block},
    )
