"""SD3Transformer2DModel of diffusers as a chain: the embeddings, one layer per block, the projection to latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from services.trainer.pipeline.runtime.splitting.chain import Chain, Layer, Run
from services.trainer.pipeline.runtime.splitting.unet import TEXT, modules_of

HIDDEN, CONTEXT, EMBEDDING = "hidden", "context", "emb"


def transformer_chain(model: Any, name: str = "transformer", *, self_conditioned: bool = False) -> Chain:
    """Return a transformer of SD 3 as a chain with the inputs sample, timestep, encoder_hidden_states and
    pooled_projections; self_conditioned as in `unet_chain`."""
    count = len(model.transformer_blocks)
    blocks = [_block(block, at, last=at == count - 1) for at, block in enumerate(model.transformer_blocks)]
    return Chain(name, (_first(model, self_conditioned), *blocks, _last(model)), ("prediction",))


def _first(model: Any, self_conditioned: bool) -> Layer:
    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        sample = state["sample"]
        if self_conditioned:
            sample = torch.cat([sample, state["estimate"]], dim=1)
        return {
            HIDDEN: model.pos_embed(sample).contiguous(),
            EMBEDDING: model.time_text_embed(state["timestep"], state["pooled_projections"]),
            CONTEXT: model.context_embedder(state[TEXT]),
        }

    reads = ("sample", *(("estimate",) if self_conditioned else ()), "timestep", TEXT, "pooled_projections")
    modules = modules_of(model, ("pos_embed", "time_text_embed", "context_embedder"))
    return Layer("embeddings", reads, (HIDDEN, EMBEDDING, CONTEXT), run, modules)


def _block(block: Any, at: int, last: bool) -> Layer:
    """Return a block; the last one updates no text states."""

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        context, hidden = block(
            hidden_states=state[HIDDEN], encoder_hidden_states=state[CONTEXT], temb=state[EMBEDDING]
        )
        return {HIDDEN: hidden} if last else {HIDDEN: hidden, CONTEXT: context}

    path = f"transformer_blocks.{at}"
    return Layer(path, (HIDDEN, CONTEXT, EMBEDDING), (HIDDEN,) if last else (HIDDEN, CONTEXT), run, {path: block})


def _last(model: Any) -> Layer:
    modules = modules_of(model, ("norm_out", "proj_out"))
    return Layer("proj_out", (HIDDEN, EMBEDDING, "sample"), ("prediction",), _unpatched(model), modules)


def _unpatched(model: Any) -> Run:
    """Return the function that turns tokens into latents of the sample's size."""

    def run(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        patch, channels = model.config.patch_size, model.out_channels
        height, width = (pixels // patch for pixels in state["sample"].shape[-2:])
        hidden = model.proj_out(model.norm_out(state[HIDDEN], state[EMBEDDING]))
        hidden = hidden.reshape(hidden.shape[0], height, width, patch, patch, channels)
        hidden = torch.einsum("nhwpqc->nchpwq", hidden)
        return {"prediction": hidden.reshape(hidden.shape[0], channels, height * patch, width * patch)}

    return run
