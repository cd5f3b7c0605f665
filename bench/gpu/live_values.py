"""Count the values that one forward pass keeps alive at its peak, on the meta device: no weights, no arithmetic.

    python -m bench.gpu.live_values
    python -m bench.gpu.live_values FOLDER    # a model on this disk, at its default and longest length

The cards' `row_values` and `decode_values` come from this command. It counts the operators' outputs while any tensor
refers to them. Attention counts as fused (its scores are never materialised). Allocator, workspace and fragmentation
are not included: compare the estimate with `python -m bench.gpu.gpu_families` on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gpu.gpu_shapes import SHAPES, Shape, build
from bench.measuring.recording import table
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import load_family
from shared.models.card_lookup import find_card

META = torch.device("meta")


class FusedAttention(TorchFunctionMode):
    """Count scaled_dot_product_attention as a fused kernel: its output alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            query, value = given["query"], given["value"]
            return query.new_empty((*query.shape[:-1], value.shape[-1]))
        return func(*args, **(kwargs or {}))


class Peak(TorchDispatchMode):
    """Record the largest number of values that operators' outputs held at one time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._held.setdefault(ref.cdata, (ref, storage.nbytes() // tensor.element_size()))
        self._held = {key: held for key, held in self._held.items() if not _gone(held[0])}
        self.values = max(self.values, sum(count for _, count in self._held.values()))
        return made


def _gone(ref: StorageWeakRef) -> bool:
    return bool(ref.expired())  # type: ignore[no-untyped-call]


def peak_of(run: Callable[[], Any]) -> int:
    """Return the values alive at the peak of `run`, without inputs and weights that existed before."""
    with torch.inference_mode(), FusedAttention(), Peak() as peak:
        run()
    return peak.values


def row_values(shape: Shape) -> int:
    """Return the peak values of one denoiser row at the card's default size."""
    with META:
        denoiser, inputs = build(shape.denoiser), inputs_of(shape, rows=1)
    return peak_of(lambda: denoiser(**inputs, return_dict=False))


def decode_values(shape: Shape) -> int:
    """Return the peak values of decoding one image at the card's default size."""
    with META:
        vae, latent = build(shape.vae), torch.empty((1, *latent_shape(shape)))
    return peak_of(lambda: vae.decode(latent, return_dict=False))  # type: ignore[operator]


def latent_shape(shape: Shape) -> tuple[int, int, int]:
    size, scale = shape.card.default_size, shape.card.vae_scale
    return shape.card.latent_channels, size.height // scale, size.width // scale


def inputs_of(shape: Shape, rows: int) -> dict[str, Any]:
    """Build uninitialised inputs for the shape's denoiser, on the current default device and dtype."""
    channels, height, width = latent_shape(shape)
    said: dict[str, Any] = {
        "timestep": torch.empty(rows),
        "encoder_hidden_states": torch.empty((rows, *shape.hidden)),
    }
    if shape.pipeline == "FluxPipeline":
        said["hidden_states"] = torch.empty((rows, height * width // 4, 4 * channels))
        said["img_ids"], said["txt_ids"] = torch.empty((height * width // 4, 3)), torch.empty((shape.hidden[0], 3))
        said["guidance"], said["pooled_projections"] = torch.empty(rows), torch.empty((rows, shape.pooled))
        return said
    latents = torch.empty((rows, channels, height, width))
    if shape.pipeline == "StableDiffusionXLPipeline":
        added = {"text_embeds": torch.empty((rows, shape.pooled)), "time_ids": torch.empty((rows, 6))}
        return {**said, "sample": latents, "added_cond_kwargs": added}
    if shape.pooled:
        said["pooled_projections"] = torch.empty((rows, shape.pooled))
    return {**said, "hidden_states": latents}


def of_family(family: Family, frames: int) -> tuple[int, int]:
    """Return the peak values of one step of one row without guidance, and of decoding it, at the card's default
    size."""
    card = family.card
    task = Task("counted", card.name, "", card.default_size, 2, 1.0, seed=0, frames=frames)  # LTX has no schedule of 1
    row = make_row(family, task)
    family.preview(row.latent)  # families fit the preview's factors once
    return peak_of(lambda: family.step([row])), peak_of(lambda: family.decode(row.latent))


def main() -> None:
    if len(sys.argv) > 1:
        card = find_card(sys.argv[1])
        family, lengths = load_family(card), sorted({card.frames.default, card.frames.most})
        counted = [(length, *(count / 1e6 for count in of_family(family, length))) for length in lengths]
        print(table([f"{card.name}, frames", "denoiser, 10⁶ per row", "VAE, 10⁶"], counted))
        return
    rows = [(name, row_values(shape) / 1e6, decode_values(shape) / 1e6) for name, shape in SHAPES.items()]
    print(table(["model, at its default size", "denoiser, 10⁶ per row", "VAE, 10⁶ per image"], rows))


if __name__ == "__main__":
    main()
