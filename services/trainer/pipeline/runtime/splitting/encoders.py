"""Frozen encoders as chains: CLIP text encoders of transformers, and the encoders of diffusers' AutoencoderKL and
AutoencoderTiny."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from services.trainer.pipeline.runtime.splitting.chain import Chain, Layer

HIDDEN = "hidden"


def clip_chain(encoder: Any, name: str, *, ids: str, penultimate: str = "", last: str = "", pooled: str = "") -> Chain:
    """Return a CLIPTextModel, or one with a projection, as a chain: embeddings, blocks, final norm.

    ids: name of its input, token ids (B, T). The others name what it makes, empty: not made. penultimate: the input of
    the last block, hidden_states[-2]; last: last_hidden_state; pooled: the projected state of the end token, or the
    state itself without a projection.
    """
    from transformers.masking_utils import create_causal_mask

    text = getattr(encoder, "text_model", encoder)
    blocks = list(text.encoder.layers)
    if not last and not pooled:
        blocks = blocks[:-1]  # the penultimate states need no more

    def embed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {HIDDEN: text.embeddings(input_ids=state[ids])}

    def block(one: nn.Module, named: str) -> Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]:
        def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            hidden = state[HIDDEN]
            mask = create_causal_mask(
                config=text.config, inputs_embeds=hidden, attention_mask=None, past_key_values=None
            )
            found = one(hidden, mask, is_causal=True)
            return {HIDDEN: found, named: found} if named else {HIDDEN: found}

        return run

    def finish(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states = text.final_layer_norm(state[HIDDEN])
        found = {last: states} if last else {}
        if pooled:
            tokens = state[ids].to(torch.int)
            ends = tokens if text.eos_token_id == 2 else (tokens == text.eos_token_id).int()
            vector = states[torch.arange(len(states), device=states.device), ends.argmax(dim=-1)]
            projection = getattr(encoder, "text_projection", None)
            found[pooled] = vector if projection is None else projection(vector)
        return found

    prefix = "" if text is encoder else "text_model."
    layers = [Layer("embeddings", (ids,), (HIDDEN,), embed, {f"{prefix}embeddings": text.embeddings})]
    for at, one in enumerate(blocks):
        named = penultimate if at == len(text.encoder.layers) - 2 else ""
        path = f"{prefix}encoder.layers.{at}"
        layers.append(Layer(path, (HIDDEN,), (HIDDEN, *((named,) if named else ())), block(one, named), {path: one}))
    made = tuple(one for one in (last, pooled) if one)
    if made:
        modules = {f"{prefix}final_layer_norm": text.final_layer_norm}
        if pooled and getattr(encoder, "text_projection", None) is not None:
            modules["text_projection"] = encoder.text_projection
        layers.append(Layer("final_layer_norm", (HIDDEN, *((ids,) if pooled else ())), made, finish, modules))
    return Chain(name, tuple(layers), tuple(one for one in (penultimate, last, pooled) if one))


def vae_chain(vae: Any, name: str = "vae", *, pixels: str = "pixels", latents: str = "latents") -> Chain:
    """Return the encoder of a VAE: pixels (B, 3, H, W) → latents (B, C, h, w), not scaled.

    Of an AutoencoderKL, whose encoder gives a distribution, these are the mode.
    """
    encoder = vae.encoder

    def once(function: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, path: str) -> Layer:
        return Layer(path, (HIDDEN,), (HIDDEN,), lambda state: {HIDDEN: function(state[HIDDEN])}, {path: module})

    if isinstance(getattr(encoder, "layers", None), nn.Sequential):
        first, *rest = encoder.layers
        layers = [_into_hidden(lambda image: first(image.add(1).div(2)), first, "encoder.layers.0", pixels)]
        layers += [once(one, one, f"encoder.layers.{at}") for at, one in enumerate(rest[:-1], 1)]
        last = rest[-1]
        path = f"encoder.layers.{len(rest)}"
        layers.append(Layer(path, (HIDDEN,), (latents,), lambda state: {latents: last(state[HIDDEN])}, {path: last}))
        return Chain(name, tuple(layers), (latents,))

    def resnet(one: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda hidden: one(hidden, temb=None)

    def finish(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = encoder.conv_out(encoder.conv_act(encoder.conv_norm_out(state[HIDDEN])))
        moments = made if vae.quant_conv is None else vae.quant_conv(made)
        return {latents: moments.chunk(2, dim=1)[0]}

    layers = [_into_hidden(encoder.conv_in, encoder.conv_in, "encoder.conv_in", pixels)]
    for number, block in enumerate(encoder.down_blocks):
        for at, one in enumerate(block.resnets):
            layers.append(once(resnet(one), one, f"encoder.down_blocks.{number}.resnets.{at}"))
        for at, one in enumerate(block.downsamplers or ()):
            layers.append(once(one, one, f"encoder.down_blocks.{number}.downsamplers.{at}"))
    for at, one in enumerate(encoder.mid_block.resnets):
        if at and (attends := encoder.mid_block.attentions[at - 1]) is not None:
            layers.append(once(resnet(attends), attends, f"encoder.mid_block.attentions.{at - 1}"))
        layers.append(once(resnet(one), one, f"encoder.mid_block.resnets.{at}"))
    parts: dict[str, nn.Module] = {"encoder.conv_norm_out": encoder.conv_norm_out, "encoder.conv_out": encoder.conv_out}
    if vae.quant_conv is not None:
        parts["quant_conv"] = vae.quant_conv
    layers.append(Layer("encoder.conv_out", (HIDDEN,), (latents,), finish, parts))
    return Chain(name, tuple(layers), (latents,))


def _into_hidden(function: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, path: str, reads: str) -> Layer:
    return Layer(path, (reads,), (HIDDEN,), lambda state: {HIDDEN: function(state[reads])}, {path: module})


def whole(name: str, reads: tuple[str, ...], makes: tuple[str, ...], module: nn.Module, run: Any) -> Chain:
    """Return a frozen model without cuts, as a chain of one layer; partial batches still divide it."""
    return Chain(name, (Layer(name, reads, makes, run, {name: module}),), makes)
