"""Vector and attributes of the images and clips of a profile. An image is one frame, a clip several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from services.cli.profiles.pairs import right
from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import Vector, vector_from
from shared.models.card_lookup import BUNDLED
from shared.models.quality import Pixels, frames_of

if TYPE_CHECKING:
    from services.trainer.judging.classifier import Reader
    from services.trainer.rendering.renderer import Renderer

Judge = Callable[[Sequence[Pixels], Any], list[dict[str, bool]]]
"""Function from images or clips, and the scene that they all should show, to whether each attribute is right."""
SPRITES = Path("out/train/sprites")
"""Folder of the objects' source images, as the trainer fetches them."""


def judge_of(frames: int, folder: Path | None = None, sprites: Path | None = None) -> tuple[Judge | None, str]:
    """Return the judge of images (1 frame) or clips; else None and the reason.

    folder: the judge's; None: the one that ships.
    sprites: source images of the objects, because the judge of clips renders what it compares."""
    from services.trainer.judging.classifier import load_reader
    from services.trainer.rendering.renderer import Renderer
    from services.trainer.rendering.sprites import sprites_cached

    if not (folder := folder or shipped_judge(frames)).is_dir():
        return None, f"no judge in {folder}"
    if frames == 1:
        return partial(_images, load_reader(folder)), ""
    if not sprites_cached(sprites := sprites or SPRITES):
        return None, f"no sprites in {sprites} (--sprites), which the judge of clips renders"
    return partial(_clips, load_reader(folder), Renderer(sprites)), ""


def shipped_judge(frames: int) -> Path:
    """Return the folder of the judge of images (1 frame) or clips that ships."""
    return BUNDLED / ("judge" if frames == 1 else "clip-judge")


def _images(reader: Reader, images: Sequence[Pixels], scene: Any) -> list[dict[str, bool]]:
    words = reader(np.stack(images)).words
    return [right(scene, {name: values[i] for name, values in words.items()}) for i in range(len(images))]


def _clips(reader: Reader, renderer: Renderer, clips: Sequence[Pixels], scene: Any) -> list[dict[str, bool]]:
    from services.trainer.judging.motion import judged_clip

    return [judged_clip(clip, scene, renderer, reader).right for clip in clips]


def vectors_of(encoder: Encoder, pictures: Sequence[Pixels]) -> list[Vector]:
    """Return the vector of each image or clip. A clip's is the mean over its frames: its cosine with a prompt is the
    frames' mean CLIP score."""
    frames = [frames_of(pixels) for pixels in pictures]
    found = iter(encoder.images([encode_png(frame) for of in frames for frame in of]))
    return [np.mean([vector_from(next(found).vector) for _ in of], axis=0) for of in frames]
