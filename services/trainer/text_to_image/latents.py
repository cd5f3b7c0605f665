"""Training data of the text-to-image models: latents of rendered scenes, computed once, read by every worker."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderTiny

from services.trainer.rendering.renderer import LAYOUTS, SIZES, Renderer, boxes
from services.trainer.text_to_image.autoencoder import STRIDE
from services.trainer.training import runs
from services.trainer.words import LENGTH, Words, sprinkled
from shared.domain.errors import NotFoundError
from shared.models.scenes import VALUES, WORDINGS, Scene, caption, held_out, random_scene
from shared.runtime.progress import Remaining

NATURAL_SHARE = 0.25
PARTS = 2
"""Number of parts of the shipped models' latents; each has a seed, so parts can be encoded in parallel."""
COUNT = 40_000
"""Scenes of 64×64 in a part; of each other size there are an eighth as many."""
_CHUNK = 20

_Part = tuple[npt.NDArray[np.float16], npt.NDArray[np.uint8], npt.NDArray[np.intp]]


@dataclass(frozen=True)
class Batch:
    """Latents (B, 4, h, w), token ids (B, LENGTH), loss weights (B, 1, h, w)."""

    latents: torch.Tensor
    tokens: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return Batch(self.latents.to(device), self.tokens.to(device), self.weights.to(device))


def encode_parts(
    vae: AutoencoderTiny, renderer: Renderer, folder: Path, count: int = COUNT, parts: Sequence[int] = range(PARTS)
) -> None:
    """Render and encode `parts` of `count` scenes of 64×64 and an eighth as many of each other size."""
    for part in parts:
        for size in SIZES:
            encode_scenes(vae, renderer, folder, size, _count(size, count), part)
        runs.log.info("latents done", part=part)


def encoded(folder: Path, count: int = COUNT, parts: Sequence[int] = range(PARTS)) -> bool:
    """Return whether `folder` holds everything that `encode_parts` makes."""
    return all(_encoded(folder, size, part) >= _count(size, count) for part in parts for size in SIZES)


def _count(size: tuple[int, int], count: int) -> int:
    return count if size == SIZES[0] else max(1, count // 8)


def _encoded(folder: Path, size: tuple[int, int], part: int) -> int:
    """Return the number of scenes of one size and part that are complete."""
    described = folder / f"{size[0]}x{size[1]}-{part}.json"
    return int(json.loads(described.read_text())["count"]) if described.exists() else 0


def encode_scenes(
    vae: AutoencoderTiny, renderer: Renderer, folder: Path, size: tuple[int, int], count: int, part: int
) -> None:
    """Render and encode `count` trainable scenes of one size into `folder`, unless it holds as many.

    `part` seeds the scenes and names the files."""
    width, height = size
    stem = f"{width}x{height}-{part}"
    if _encoded(folder, size, part) >= count:
        return
    (folder / f"{stem}.json").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{stem} latents")
    shape = (count, 4, height // STRIDE, width // STRIDE)
    latents = np.lib.format.open_memmap(folder / f"{stem}.npy", mode="w+", dtype=np.float16, shape=shape)
    labels = np.zeros((count, len(VALUES) + 1), dtype=np.uint8)
    remaining = Remaining(f"encoding {stem}, scenes", count, say=runs.log.info)
    for start in range(0, count, _CHUNK):
        pictures = []
        for i in range(start, min(start + _CHUNK, count)):
            scene = random_scene(rng, NATURAL_SHARE)
            while held_out(scene):
                scene = random_scene(rng, NATURAL_SHARE)
            layout = rng.randrange(LAYOUTS)
            labels[i] = [*scene.labels().values(), layout]
            pictures.append(renderer.render(scene, width, height, layout).pixels)
        with torch.no_grad(), runs.autocast(vae.device):
            inputs = runs.to_tensor(np.stack(pictures)).to(vae.device, memory_format=torch.channels_last)
            found = vae.encode(inputs).latents
        latents[start : start + len(pictures)] = found.float().cpu().numpy().astype(np.float16)
        remaining.advance(len(pictures))
    latents.flush()
    np.save(folder / f"{stem}-labels.npy", labels)
    partial = folder / f"{stem}.partial"
    partial.write_text(json.dumps({"width": width, "height": height, "count": count}))
    os.replace(partial, folder / f"{stem}.json")


def must_be_there(folder: Path) -> None:
    """Raise NotFoundError if no scenes are encoded in `folder` yet."""
    if not any(folder.glob("*.json")):
        raise NotFoundError(f"no latents in {folder}: make them first, with `python -m services.trainer latents`")


class Latents:
    """Every encoded scene in a folder, sampled in batches of one size."""

    def __init__(self, folder: Path, words: Words, object_weight: float = 5.0) -> None:
        """Read the folder; NotFoundError if it holds no scenes."""
        must_be_there(folder)
        self.words, self._object_weight = words, object_weight
        self._parts: dict[tuple[int, int], list[_Part]] = {}
        for info in sorted(folder.glob("*.json")):
            described = json.loads(info.read_text())
            labels = np.load(folder / f"{info.stem}-labels.npy")
            rows = np.flatnonzero(
                [not held_out(scene_of(row)[0]) for row in labels]
            )  # drop rows that the current grammar holds out
            pair = (np.load(info.with_suffix(".npy"), mmap_mode="r"), labels, rows)
            self._parts.setdefault((described["width"], described["height"]), []).append(pair)
        self.count = sum(len(rows) for parts in self._parts.values() for _, _, rows in parts)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return the sizes of the stored latents."""
        return tuple(size for size in SIZES if size in self._parts)

    def batch(self, size: tuple[int, int], count: int, rng: random.Random, dropout: float = 0.0) -> Batch:
        """Sample `count` scenes of one size, each with a random wording; a share `dropout` of the captions is empty."""
        width, height = size
        latents = np.empty((count, 4, height // STRIDE, width // STRIDE), dtype=np.float32)
        weights = torch.ones(count, 1, height // STRIDE, width // STRIDE)
        tokens = []
        for i in range(count):
            found, labels, rows = rng.choice(self._parts[size])
            row = rows[rng.randrange(len(rows))]
            latents[i] = found[row]
            scene, layout = scene_of(labels[row])
            for x0, y0, x1, y1 in boxes(scene, width, height, layout):
                weights[i, :, y0 // STRIDE : y1 // STRIDE, x0 // STRIDE : x1 // STRIDE] = self._object_weight
            tokens.append(self.words.ids("") if rng.random() < dropout else self._say(scene, rng))
        return Batch(torch.from_numpy(latents), torch.tensor(tokens).view(count, LENGTH), weights)

    def _say(self, scene: Scene, rng: random.Random) -> tuple[int, ...]:
        text = caption(scene, rng.randrange(WORDINGS))
        return self.words.ids(sprinkled(text, rng) if rng.random() < 0.06 else text)


def scene_of(labels: npt.NDArray[np.uint8]) -> tuple[Scene, int]:
    """Return the scene and layout of a row of stored labels."""
    values = [allowed[int(i)] for allowed, i in zip(VALUES.values(), labels, strict=False)]
    return Scene(*values), int(labels[-1])  # type: ignore[arg-type]  # the fields of Scene in the order of VALUES
