"""Attention over the packed tokens of several images: projections on all tokens at once, then each size by itself.

Each function takes the batch, the attention's own processor for whole images (unused), and what that processor takes.
Image tokens come as patches (P, n, width), texts as (R, t, width) in the order of the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.embeddings import apply_rotary_emb
from torch import Tensor

from services.gpu_worker.engine.patches.batch import PatchBatch

HALF = 65504
"""Largest number in float16."""


def joint(
    batch: PatchBatch,
    _: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: None = None,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> Any:
    """Attend from each image and its text to both (SD3, FLUX); return image and text, or the image without a text.

    Without `encoder_hidden_states`, hidden_states are the images alone, or all texts and then all images.
    """
    three = _heads(attn, hidden_states, (attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k), (attn.to_v, None))
    if (text := encoder_hidden_states) is not None:
        added = (attn.add_q_proj, attn.norm_added_q), (attn.add_k_proj, attn.norm_added_k), (attn.add_v_proj, None)
        three = [torch.cat(pair) for pair in zip(_heads(attn, text, *added), three, strict=True)]
    if image_rotary_emb is not None:
        three[:2] = (apply_rotary_emb(each[None], image_rotary_emb, sequence_dim=1)[0] for each in three[:2])
    attended = _attend_joint(batch, three)
    image = attended[-hidden_states[..., 0].numel() :].view(*hidden_states.shape[:2], -1)
    if not attn.pre_only:
        image = _out(attn, image)
    if text is None:
        return image
    said = attended[: text[..., 0].numel()].view(*text.shape[:2], -1)
    return image, said if attn.context_pre_only else attn.to_add_out(said)


def linear(
    batch: PatchBatch, _: Any, attn: Any, hidden_states: Tensor, *, attention_mask: None = None, **none: None
) -> Tensor:
    """Attend from each image to itself by linear attention with ReLU (SANA §2.2), in float32."""
    three = _projected(attn, hidden_states, hidden_states)
    attended = [
        _linear(*(batch.by_image(values, each).float() for values in three), heads=attn.heads)
        for each in batch.layout.resolutions
    ]
    out = _out(attn, _as_patches(attended, like=three[0]))
    return out.clip(-HALF, HALF) if out.dtype == torch.float16 else out


def to_text(
    batch: PatchBatch, _: Any, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor
) -> Tensor:
    """Attend from each image to its text (SANA); attention_mask: (R, 1, t), added to the scores.

    encoder_hidden_states: tokens of all texts, and padding at the end, (P, m, width).
    """
    requests, long = attention_mask.shape[::2]
    query, key, value = _projected(attn, hidden_states, encoder_hidden_states.flatten(0, 1)[: requests * long])
    key, value = (values.view(requests, long, -1) for values in (key, value))
    attended = []
    for each in batch.layout.resolutions:
        own = each.requests
        q, k, v = _by_head((batch.by_image(query, each), key[own], value[own]), attn.heads)
        attended.append(F.scaled_dot_product_attention(q, k, v, attention_mask[own, None]).transpose(1, 2).flatten(2))
    return _out(attn, _as_patches(attended, like=query))


def _heads(attn: Any, tokens: Tensor, *projections: tuple[Any, Any]) -> list[Tensor]:
    """Project (…, width) to (tokens, heads, width of a head); a projection may have a norm."""
    found = []
    for project, norm in projections:
        values = project(tokens).flatten(0, -2).unflatten(-1, (attn.heads, -1))
        found.append(values if norm is None else norm(values))
    return found


def _attend_joint(batch: PatchBatch, three: Sequence[Tensor]) -> Tensor:
    """Attend within each request; three: query, key and value (tokens, heads, width of a head) of all texts, if there
    are any, and then of all images. Returns (tokens, heads · width)."""
    layout = batch.layout
    requests, patches = len(layout.order), layout.patches
    first = len(three[0]) - patches * layout.side**2  # of the images' tokens
    long = first // requests
    texts = [values[:first].reshape(requests, long, *values.shape[1:]) for values in three]
    images = [values[first:].reshape(patches, -1, *values.shape[1:]) for values in three]
    found = []
    for each in layout.resolutions:
        query, key, value = (
            torch.cat([text[each.requests], batch.by_image(image, each)], dim=1).transpose(1, 2)
            for text, image in zip(texts, images, strict=True)
        )
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        found.append(attended.tensor_split([long], dim=1))
    return torch.cat([part.flatten(0, 1) for parts in zip(*found, strict=True) for part in parts])


def _projected(attn: Any, tokens: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query of `tokens`, and the key and value of `source`."""
    query, key, value = attn.to_q(tokens), attn.to_k(source), attn.to_v(source)
    if attn.norm_q is not None:
        query = attn.norm_q(query)
    return query, key if attn.norm_k is None else attn.norm_k(key), value


def _linear(query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
    """Attend among (B, n, width), in `heads` heads; a column of ones in the value sums the weights."""
    query, key, value = _by_head((query, key, value), heads)
    attended = query.relu() @ (key.relu().mT @ F.pad(value, (0, 1), value=1.0))
    return (attended[..., :-1] / (attended[..., -1:] + 1e-15)).transpose(1, 2).flatten(2)


def _by_head(three: Sequence[Tensor], heads: int) -> Sequence[Tensor]:
    """Return (B, n, width) as (B, heads, n, width of a head)."""
    return [each.reshape(*each.shape[:2], heads, -1).transpose(1, 2) for each in three]


def _as_patches(images: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the tokens (requests, tokens, width) of each size as the patches that they came from."""
    return torch.cat([each.reshape(-1, *like.shape[1:]) for each in images]).to(like.dtype)


def _out(attn: Any, attended: Tensor) -> Any:
    return attn.to_out[1](attn.to_out[0](attended))
