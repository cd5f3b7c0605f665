"""UNet2DConditionModel of diffusers as a chain: one layer per resnet, attention block, down- and upsampler.

The functions below follow the forward passes of diffusers' UNet2DConditionModel and its blocks for the arguments that
training uses. Skips are named `skip.0`, `skip.1`, …; a stage between the layer that makes one and the layer that reads
it relays it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from services.trainer.pipeline.runtime.splitting.chain import Chain, Layer, Run
from shared.domain.errors import ModelError

DOWN = ("DownBlock2D", "CrossAttnDownBlock2D")
MIDDLE = ("UNetMidBlock2D", "UNetMidBlock2DCrossAttn")
UP = ("UpBlock2D", "CrossAttnUpBlock2D")
ADDED = {None: (), "text": (), "text_time": ("text_embeds", "time_ids")}
"""Kind of added conditions → inputs that they read besides the text states."""
TEXT = "encoder_hidden_states"


def unet_chain(unet: Any, name: str = "unet", *, self_conditioned: bool = False) -> Chain:
    """Return a UNet as a chain with the inputs sample, timestep, encoder_hidden_states (and text_embeds, time_ids).

    self_conditioned: the first layer also reads `estimate` (B, 4, h, w) and appends its channels to the sample's
    (Chen et al. 2022, §2.3); the UNet then has twice the channels of a latent as inputs.
    """
    check_unet(unet)
    context = TEXT if unet.encoder_hid_proj is None else "context"
    layers = [
        first_layer(unet, "", self_conditioned),
        *down_layers(unet, "", context),
        *middle_layers(unet, "", context),
        *up_layers(unet, "", context),
    ]
    return Chain(name, tuple(layers), ("prediction",))


def check_unet(unet: Any) -> None:
    """Raise ModelError with the field and the rule if a UNet has a part that the splitter does not know."""
    blocks = [(block, DOWN, "down_block_types") for block in unet.down_blocks]
    blocks += [(block, UP, "up_block_types") for block in getattr(unet, "up_blocks", ())]
    if unet.mid_block is not None:
        blocks.append((unet.mid_block, MIDDLE, "mid_block_type"))
    for block, known, field in blocks:
        if type(block).__name__ not in known:
            raise ModelError(f"{field}: a pipeline can cut {' and '.join(known)} (got {type(block).__name__})")
    if unet.config.addition_embed_type not in ADDED:
        known_kinds = ", ".join(str(kind) for kind in ADDED)
        raise ModelError(
            f"addition_embed_type: a pipeline supports {known_kinds} (got {unet.config.addition_embed_type!r})"
        )
    if unet.class_embedding is not None:
        raise ModelError("class_embed_type: a pipeline supports models without class labels only")
    if unet.config.encoder_hid_dim_type not in (None, "text_proj"):
        raise ModelError(
            f"encoder_hid_dim_type: a pipeline supports text_proj or none (got {unet.config.encoder_hid_dim_type!r})"
        )


def first_layer(unet: Any, prefix: str, self_conditioned: bool) -> Layer:
    """Return the layer that embeds the timestep and the added conditions, and convolves the sample."""
    added_names = ADDED[unet.config.addition_embed_type]
    hidden, embedding = f"{prefix}hidden", f"{prefix}emb"
    skip = f"{prefix}skip.0"
    projects = unet.encoder_hid_proj is not None

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sample, text = state["sample"], state[TEXT]
        if self_conditioned:
            sample = torch.cat([sample, state["estimate"]], dim=1)
        if unet.config.center_input_sample:
            sample = 2 * sample - 1.0
        added = {name: state[name] for name in added_names}
        emb = unet.time_embedding(unet.get_time_embed(sample=sample, timestep=state["timestep"]), None)
        more = unet.get_aug_embed(emb=emb, encoder_hidden_states=text, added_cond_kwargs=added)
        emb = emb if more is None else emb + more
        if unet.time_embed_act is not None:
            emb = unet.time_embed_act(emb)
        made = unet.conv_in(sample)
        found = {hidden: made, skip: made, embedding: emb}
        if projects:
            found[f"{prefix}context"] = unet.process_encoder_hidden_states(
                encoder_hidden_states=text, added_cond_kwargs=added
            )
        return found

    reads = ("sample", *(("estimate",) if self_conditioned else ()), "timestep", TEXT, *added_names)
    makes = (hidden, skip, embedding, *((f"{prefix}context",) if projects else ()))
    parts = ("time_embedding", "add_embedding", "encoder_hid_proj", "conv_in")
    return Layer(f"{prefix}conv_in", reads, makes, run, modules_of(unet, parts))


def modules_of(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return those of the named parts that a model has."""
    found = {name: getattr(model, name, None) for name in names}
    return {name: part for name, part in found.items() if isinstance(part, nn.Module)}


def down_layers(unet: Any, prefix: str, context: str) -> Iterator[Layer]:
    """Yield the layers of the down blocks; each pair of resnet and attention, and each downsampler, makes a skip."""
    hidden, embedding, made = f"{prefix}hidden", f"{prefix}emb", 0
    for number, block in enumerate(unet.down_blocks):
        attentions: Any = getattr(block, "attentions", None)
        for at, resnet in enumerate(block.resnets):
            where, plain = f"down_blocks.{number}", attentions is None
            made += 1
            skip = f"{prefix}skip.{made}"
            yield Layer(
                f"{prefix}{where}.resnets.{at}",
                (hidden, embedding),
                (hidden, skip) if plain else (hidden,),
                _resnet(resnet, hidden, embedding, skip if plain else None),
                {f"{where}.resnets.{at}": resnet},
            )
            if not plain:
                yield Layer(
                    f"{prefix}{where}.attentions.{at}",
                    (hidden, context),
                    (hidden, skip),
                    attention(attentions[at], hidden, context, skip),
                    {f"{where}.attentions.{at}": attentions[at]},
                )
        for at, sampler in enumerate(block.downsamplers or ()):
            made += 1
            skip, path = f"{prefix}skip.{made}", f"down_blocks.{number}.downsamplers.{at}"
            yield Layer(
                f"{prefix}{path}", (hidden,), (hidden, skip), _downsample(sampler, hidden, skip), {path: sampler}
            )


def middle_layers(unet: Any, prefix: str, context: str) -> Iterator[Layer]:
    """Yield the layers of the middle block; none if the model has none."""
    if unet.mid_block is None:
        return
    hidden, embedding = f"{prefix}hidden", f"{prefix}emb"
    crossed = bool(getattr(unet.mid_block, "has_cross_attention", False))
    for at, resnet in enumerate(unet.mid_block.resnets):
        one: Any = unet.mid_block.attentions[at - 1] if at else None
        if one is not None:
            path = f"mid_block.attentions.{at - 1}"
            run = attention(one, hidden, context) if crossed else _self_attention(one, hidden, embedding)
            yield Layer(f"{prefix}{path}", (hidden, context if crossed else embedding), (hidden,), run, {path: one})
        path = f"mid_block.resnets.{at}"
        run = _resnet(resnet, hidden, embedding)
        yield Layer(f"{prefix}{path}", (hidden, embedding), (hidden,), run, {path: resnet})


def up_layers(unet: Any, prefix: str, context: str, residual: str | None = None) -> Iterator[Layer]:
    """Yield the layers of the up blocks and the last convolution.

    residual: prefix of tensors that are added to the skips, as a ControlNet's are.
    """
    hidden, embedding = f"{prefix}hidden", f"{prefix}emb"
    left = sum(len(block.resnets) for block in unet.up_blocks)
    factor = 2**unet.num_upsamplers
    for number, block in enumerate(unet.up_blocks):
        attentions: Any = getattr(block, "attentions", None)
        for at, resnet in enumerate(block.resnets):
            left -= 1
            path = f"up_blocks.{number}.resnets.{at}"
            added = None if residual is None else f"{residual}{left}"
            reads = (hidden, embedding, f"{prefix}skip.{left}", *((added,) if added else ()))
            run = _joined_resnet(resnet, hidden, embedding, f"{prefix}skip.{left}", added)
            yield Layer(f"{prefix}{path}", reads, (hidden,), run, {path: resnet})
            if attentions is not None:
                path = f"up_blocks.{number}.attentions.{at}"
                run = attention(attentions[at], hidden, context)
                yield Layer(f"{prefix}{path}", (hidden, context), (hidden,), run, {path: attentions[at]})
        for at, sampler in enumerate(block.upsamplers or ()):
            path = f"up_blocks.{number}.upsamplers.{at}"
            following = f"{prefix}skip.{left - 1}" if number < len(unet.up_blocks) - 1 else None
            run = _upsample(sampler, hidden, following, factor)
            reads = (hidden, "sample", following) if following else (hidden,)
            yield Layer(f"{prefix}{path}", reads, (hidden,), run, {path: sampler})
    last = modules_of(unet, ("conv_norm_out", "conv_act", "conv_out"))

    def run_last(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sample = state[hidden]
        if unet.conv_norm_out:
            sample = unet.conv_act(unet.conv_norm_out(sample))
        return {"prediction": unet.conv_out(sample)}

    yield Layer(f"{prefix}conv_out", (hidden,), ("prediction",), run_last, last)


def attention(block: Any, hidden: str, context: str, skip: str | None = None) -> Run:
    """Return the function of a transformer block between hidden states and text states."""

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = block(state[hidden], encoder_hidden_states=state[context], return_dict=False)[0]
        return {hidden: found} if skip is None else {hidden: found, skip: found}

    return run


def _resnet(resnet: Any, hidden: str, embedding: str, skip: str | None = None) -> Run:
    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = resnet(state[hidden], state[embedding])
        return {hidden: found} if skip is None else {hidden: found, skip: found}

    return run


def _joined_resnet(resnet: Any, hidden: str, embedding: str, skip: str, residual: str | None) -> Run:
    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        joined = state[skip] if residual is None else state[skip] + state[residual]
        return {hidden: resnet(torch.cat([state[hidden], joined], dim=1), state[embedding])}

    return run


def _self_attention(block: Any, hidden: str, embedding: str) -> Run:
    return lambda state: {hidden: block(state[hidden], temb=state[embedding])}


def _downsample(sampler: Any, hidden: str, skip: str) -> Run:
    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = sampler(state[hidden])
        return {hidden: found, skip: found}

    return run


def _upsample(sampler: Any, hidden: str, following: str | None, factor: int) -> Run:
    """Return the function of an upsampler; odd sizes take the size of the next block's skip."""

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        size = None
        if following is not None and any(pixels % factor for pixels in state["sample"].shape[-2:]):
            size = state[following].shape[2:]
        return {hidden: sampler(state[hidden], size)}

    return run
