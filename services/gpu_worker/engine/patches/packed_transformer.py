"""Transformers (SD3, FLUX, SANA) whose forward passes of different sizes run packed in one batch.

The tokens of all images are one sequence, viewed as patches: squares of tokens that fill every image of the batch.
Linear layers, norms and feed-forward then run on all tokens at once, and modulation has a vector for each patch. What
sees a whole image or a text is wrapped when the model is loaded: attention, position embeddings, SANA's convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from services.gpu_worker.engine.patches import packed_attention
from services.gpu_worker.engine.patches.batch import Current, PatchBatch
from services.gpu_worker.engine.patches.layout import Shape
from services.gpu_worker.engine.patches.packed_batch import padded
from services.gpu_worker.engine.patches.patched_model import PatchedModel

Around = Callable[..., Any]
"""(batch, forward of whole images, arguments) → the module's result on packed tokens."""


class PackedTransformer(PatchedModel):
    """A loaded transformer; patches are as large as the sizes of a batch allow, so they fill every image.

    unit: latent cells per side of a token. Raises ValueError for attention that does not run on packed tokens.
    """

    per_patch = False

    def __init__(self, transformer: nn.Module, unit: int) -> None:
        super().__init__(unit)
        wrap_modules(transformer, self.current)

    def _side(self, shapes: Sequence[Shape]) -> int:
        return math.gcd(*(cells for shape in shapes for cells in shape))


def wrap_modules(transformer: Any, current: Current) -> None:
    """Wrap the modules that see a whole image or a text, by their type or name; weights stay as they are.

    Raises ValueError naming the attention processors that do not run on packed tokens.
    """
    kinds = {type(each).__name__ for each in transformer.attn_processors.values()}
    if unknown := sorted(kinds - PROCESSORS.keys()):
        raise ValueError(f"attention that does not run on packed tokens: {', '.join(unknown)}")
    for name, module in transformer.named_modules():
        if hasattr(module, "set_processor"):
            module.set_processor(_wrapped(module.processor, PROCESSORS[type(module.processor).__name__], current))
        elif around := TYPES.get(type(module).__name__) or NAMES.get(".".join(name.split(".")[-2:])):
            module.forward = _wrapped(module.forward, around, current)


def _wrapped(whole: Callable[..., Any], around: Around, current: Current) -> Callable[..., Any]:
    def forward(*given: Any, **named: Any) -> Any:
        return whole(*given, **named) if current.batch is None else around(current.batch, whole, *given, **named)

    return forward


def _per_patch(batch: PatchBatch, whole: Any, *given: Any, **named: Any) -> Any:
    """Compute embeddings of timesteps once per request; return a vector, or several, for each patch."""
    found = whole(*given, **named)
    return found[batch.requests] if isinstance(found, Tensor) else tuple(each[batch.requests] for each in found)


def _per_text(batch: PatchBatch, whole: Any, vectors: Tensor) -> Any:
    """Modulate texts (R, t, width) by the vectors of their requests, from those of patches."""
    return whole(vectors[batch.firsts])


def _embed(batch: PatchBatch, whole: Any, latents: Tensor) -> Tensor:
    """Embed latents (P, C, s, s) as tokens (P, n, width), with positions in their images."""
    tokens = (whole(grid.movedim(-1, 1)) for grid in batch.grids(latents.movedim(1, -1)))
    grids = [own.view(*sides, -1) for own, sides in zip(tokens, _sides(batch), strict=True)]
    return batch.split_grids(grids).flatten(1, 2)


def _convolve(batch: PatchBatch, whole: Any, patches: Tensor) -> Tensor:
    """Convolve images put together from their patches (P, C, s, s)."""
    grids = [whole(grid.movedim(-1, 1)).movedim(1, -1) for grid in batch.grids(patches.movedim(1, -1))]
    return batch.split_grids(grids).movedim(-1, 1)


def _pad_texts(batch: PatchBatch, whole: Any, texts: Tensor) -> Tensor:
    """Project texts (R, t, width) to (P · m, width), padded: SANA views its texts as one per row of the batch."""
    return padded(whole(texts), batch.layout.patches).flatten(0, 1)


def _rotate(batch: PatchBatch, whole: Any, places: Tensor) -> Any:
    """Embed the places of all texts and then of all images; places: those of one text and one patch (FLUX)."""
    text = places[: -(batch.layout.side**2)]
    grids = []
    for count, *sides in _sides(batch):
        grid = torch.cartesian_prod(*(torch.arange(side) for side in (1, *sides)))  # (0, row, column)
        grids.append(grid.view(*sides, -1).expand(count, -1, -1, -1))
    images = batch.split_grids(grids).flatten(0, 2).to(places)
    return whole(torch.cat([text.repeat(len(batch.layout.order), 1), images]))


def _sides(batch: PatchBatch) -> list[tuple[int, int, int]]:
    """Return requests, rows and columns of tokens of each resolution."""
    side = batch.layout.side
    return [(each.count, each.rows * side, each.columns * side) for each in batch.layout.resolutions]


def _join_texts(
    batch: PatchBatch, whole: Any, *, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, **named: Any
) -> tuple[Tensor, Tensor]:
    """Run a block that joins text and image (FLUX) on all texts and then all images, cut into pieces of equal length.

    The block gets the pieces as images without a text.
    """
    both = encoder_hidden_states, hidden_states
    length = math.gcd(*(each.shape[1] for each in both))
    pieces = [each.reshape(-1, length, each.shape[-1]) for each in both]
    vectors = [
        each.repeat_interleave(len(cut) // len(each), dim=0)
        for each, cut in zip((temb[batch.firsts], temb), pieces, strict=True)
    ]
    joined = torch.cat(pieces)
    _, out = whole(hidden_states=joined, encoder_hidden_states=joined[:, :0], temb=torch.cat(vectors), **named)
    text, image = out.split([len(each) for each in pieces])
    return text.reshape(both[0].shape), image.reshape(both[1].shape)


PROCESSORS: dict[str, Around] = {
    "JointAttnProcessor2_0": packed_attention.joint,
    "FluxAttnProcessor": packed_attention.joint,
    "SanaLinearAttnProcessor2_0": packed_attention.linear,
    "SanaAttnProcessor2_0": packed_attention.to_text,
}
TYPES: dict[str, Around] = {
    "CombinedTimestepTextProjEmbeddings": _per_patch,
    "CombinedTimestepGuidanceTextProjEmbeddings": _per_patch,
    "AdaLayerNormSingle": _per_patch,
    "PatchEmbed": _embed,
    "FluxPosEmbed": _rotate,
    "FluxSingleTransformerBlock": _join_texts,
}
NAMES: dict[str, Around] = {
    "norm1_context.linear": _per_text,
    "ff.conv_depth": _convolve,
    "caption_projection": _pad_texts,
}
"""By the last parts of a module's name, where the type has other uses."""
