"""Open a checkpoint for training: card, diffusers pipeline, and the kinds of model that can be trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.card_lookup import card_of_weights, find_card
from shared.models.checkpoint import INDEX, kind_of, left_out, read_json

TRAINED = ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusion3Pipeline")
"""Pipelines that can be fine-tuned: SD 1.x and 2.x, SDXL, SD 3."""


@dataclass(frozen=True)
class Base:
    """A checkpoint to start from, on the CPU, with nothing trainable."""

    card: ModelCard
    folder: Path
    pipeline: Any
    """diffusers' pipeline: the denoiser in float32, its other components in the dtype of their files."""
    denoiser_name: str
    """Folder of the denoiser: unet or transformer."""

    @property
    def denoiser(self) -> Any:
        return getattr(self.pipeline, self.denoiser_name)

    @property
    def scheduler_config(self) -> dict[str, Any]:
        """The configuration as diffusers reads it, with its class name: the noise that the model was trained on."""
        return {"_class_name": type(self.pipeline.scheduler).__name__} | dict(self.pipeline.scheduler.config)


def find_base(model: str) -> tuple[ModelCard, Path]:
    """Return the card and the folder of a checkpoint that can be trained, without loading it.

    Raises ModelError with the name for an unknown model, and for a kind that cannot be trained.
    """
    card = find_card(model)
    if card.is_noop:
        raise ModelError(f"model: {model!r} has no weights to train")
    folder = card.folder
    if not card.family:
        card = card_of_weights(folder, card.name, card.path)
    named = read_json(folder / INDEX).get("_class_name")
    if named not in TRAINED:
        raise ModelError(f"model: {model!r} must be a checkpoint of {', '.join(TRAINED)} (got {named})")
    return card, folder


def load_base(model: str) -> Base:
    """Load a checkpoint; ModelError as in `find_base`, and for weights that cannot be loaded."""
    import diffusers
    import transformers

    card, folder = find_base(model)
    kind = kind_of(folder)
    assert kind is not None, "find_base refuses a checkpoint without a class"
    for logging in (transformers.utils.logging, diffusers.utils.logging):
        logging.disable_progress_bar()
        logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers warns about checkpoints older than itself
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(
                folder,
                torch_dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                **dict.fromkeys(left_out(folder)),
                **_without_checker(folder),
            )
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"model {card.name!r}: cannot load {folder}: {error}") from error
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.to(torch.float32).eval().requires_grad_(False)
    return Base(card, folder, pipeline, kind.denoiser)


def _without_checker(folder: Path) -> dict[str, Any]:
    """Return the loading options that leave a safety checker out, where the checkpoint has one: training needs none."""
    if read_json(folder / INDEX).get("safety_checker") in (None, [None, None]):
        return {}
    return {"safety_checker": None, "requires_safety_checker": False}
