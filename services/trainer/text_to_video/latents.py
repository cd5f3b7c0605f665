"""Training data of the motion model: latents of rendered clips, computed once."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderTiny

from services.trainer.rendering.clips import FRAMES, clip_boxes, render_clip
from services.trainer.rendering.renderer import LAYOUTS, Renderer
from services.trainer.text_to_image.autoencoder import STRIDE
from services.trainer.text_to_image.latents import Batch
from services.trainer.training import runs
from services.trainer.words import LENGTH, Words, sprinkled
from shared.domain.errors import NotFoundError
from shared.models.scenes import (
    CLIP_WORDINGS,
    MOVING_VALUES,
    VALUES,
    MovingScene,
    Scene,
    clip_caption,
    random_moving_scene,
)
from shared.runtime.progress import Remaining

SIDE = 64
"""Width and height of a training clip in pixels."""
COUNT = 10_000
"""Clips in a part."""
PARTS = 2
"""Parts of the shipped model's clips; each has a seed, so parts can be encoded in parallel."""
UNNAMED = -100
"""Index that `cross_entropy` leaves out."""
_VALUES = dict(VALUES) | dict(MOVING_VALUES)


@dataclass(frozen=True)
class ClipBatch(Batch):
    """Latents (B, 4, F, h, w), token ids (B, LENGTH), loss weights (B, 1, F, h, w), and which motion and background
    motion each caption names: indices (B, 2), UNNAMED for an empty caption."""

    named: torch.Tensor

    def to(self, device: torch.device) -> ClipBatch:
        """Return the batch on another device."""
        moved = (self.latents, self.tokens, self.weights, self.named)
        return ClipBatch(*(tensor.to(device) for tensor in moved))


def encode_clips(vae: AutoencoderTiny, renderer: Renderer, folder: Path, count: int, part: int) -> None:
    """Render and encode `count` moving scenes into `folder`, unless it holds as many; `part` seeds the scenes."""
    if clips_in(folder, part) >= count:
        return
    described = folder / f"clips-{part}.json"
    described.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"clips {part}")
    side = SIDE // STRIDE
    path = folder / f"clips-{part}.npy"
    latents = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(count, FRAMES, 4, side, side))
    labels = np.zeros((count, len(_VALUES) + 1), dtype=np.uint8)
    remaining = Remaining(f"encoding part {part}, clips", count, say=runs.log.info)
    for i in range(count):
        moving, layout = random_moving_scene(rng), rng.randrange(LAYOUTS)
        labels[i] = [*moving.labels().values(), layout]
        pixels = render_clip(renderer, moving, SIDE, SIDE, layout).pixels
        with torch.no_grad(), runs.autocast(vae.device):
            inputs = runs.to_tensor(pixels).to(vae.device, memory_format=torch.channels_last)
            latents[i] = vae.encode(inputs).latents.float().cpu().numpy().astype(np.float16)
        remaining.advance()
    latents.flush()
    np.save(folder / f"clips-{part}-labels.npy", labels)
    partial = folder / f"clips-{part}.partial"
    partial.write_text(json.dumps({"count": count}))
    os.replace(partial, described)


def clips_in(folder: Path, part: int) -> int:
    """Return the number of clips of one part; 0 if it is not complete."""
    described = folder / f"clips-{part}.json"
    return int(json.loads(described.read_text())["count"]) if described.exists() else 0


class ClipLatents:
    """Every encoded clip in a folder, sampled in batches."""

    def __init__(self, folder: Path, words: Words, object_weight: float = 5.0) -> None:
        """Read the folder; NotFoundError if it holds no clips."""
        found = sorted(folder.glob("clips-*.json"))
        if not found:
            raise NotFoundError(
                f"no clips in {folder}: make them first, with `python -m services.trainer motion clips`"
            )
        self.words, self._object_weight = words, object_weight
        self._parts = [
            (np.load(one.with_suffix(".npy"), mmap_mode="r"), np.load(folder / f"{one.stem}-labels.npy"))
            for one in found
        ]
        self._of = [(part, row) for part, (_, labels) in enumerate(self._parts) for row in range(len(labels))]
        self.count = len(self._of)

    def batch(self, count: int, rng: random.Random, dropout: float) -> ClipBatch:
        """Sample `count` clips, each with a random wording. A share `dropout` of the captions is empty."""
        latents, weights, tokens, named = [], [], [], []
        for part, row in rng.choices(self._of, k=count):
            stored, labels = self._parts[part]
            moving, layout = moving_of(labels[row])
            latents.append(torch.from_numpy(stored[row].astype(np.float32)).transpose(0, 1))
            weights.append(self._weights(moving, layout))
            silent = rng.random() < dropout
            tokens.append(self.words.ids("") if silent else _say(self.words, moving, rng))
            named.append([UNNAMED, UNNAMED] if silent else [int(i) for i in labels[row][len(VALUES) : -1]])
        text = torch.tensor(tokens).view(count, LENGTH)
        return ClipBatch(torch.stack(latents), text, torch.stack(weights), torch.tensor(named))

    def _weights(self, moving: MovingScene, layout: int) -> torch.Tensor:
        side = SIDE // STRIDE
        found = torch.ones(1, FRAMES, side, side)
        for frame, boxes in enumerate(clip_boxes(moving, SIDE, SIDE, layout)):
            for x0, y0, x1, y1 in boxes:
                found[:, frame, y0 // STRIDE : y1 // STRIDE, x0 // STRIDE : x1 // STRIDE] = self._object_weight
        return found


def moving_of(labels: Sequence[int] | np.ndarray) -> tuple[MovingScene, int]:
    """Return the moving scene and layout of a row of stored labels."""
    values = [allowed[int(i)] for allowed, i in zip(_VALUES.values(), labels, strict=False)]
    scene = Scene(*values[: len(VALUES)])  # type: ignore[arg-type]  # the fields of Scene in the order of VALUES
    return MovingScene(scene, *map(str, values[len(VALUES) :])), int(labels[-1])


def _say(words: Words, moving: MovingScene, rng: random.Random) -> tuple[int, ...]:
    text = clip_caption(moving, rng.randrange(CLIP_WORDINGS))
    return words.ids(sprinkled(text, rng) if rng.random() < 0.06 else text)
