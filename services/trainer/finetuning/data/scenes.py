"""The project's own rendered scenes as a data set, each rendered in the size that is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from services.trainer.finetuning.data.images import Broken, Captioned
from services.trainer.rendering.renderer import LAYOUTS, SIZES, Renderer
from services.trainer.text_to_image.latents import NATURAL_SHARE, scene_of
from shared.domain.types import Size
from shared.models.scenes import WORDINGS, caption, held_out, random_scene


@dataclass(frozen=True)
class Scenes:
    """Trainable scenes of the grammar with random captions; the same seed gives the same scenes."""

    count: int
    sprites: Path
    seed: int = 0

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self.sprites)

    def rows(self) -> list[Captioned | Broken]:
        rng, found = random.Random(f"{self.seed} scenes"), list[Captioned | Broken]()
        while len(found) < self.count:
            scene = random_scene(rng, NATURAL_SHARE)
            if held_out(scene):  # kept for the judges
                continue
            labels = [*scene.labels().values(), rng.randrange(LAYOUTS)]
            text = caption(scene, rng.randrange(WORDINGS))
            size = rng.choice(SIZES)
            found.append(Captioned(f"scene {len(found)}", text, (*labels, *size)))
        return found

    def files(self) -> list[Path]:
        return []  # sprites of other contents are refused: their digest is in the code

    def image(self, row: Captioned, size: Size | None) -> Image.Image:
        *labels, width, height = row.place
        scene, layout = scene_of(np.array(labels, dtype=np.uint8))
        asked = Size(width, height) if size is None else size
        return Image.fromarray(self._renderer.render(scene, asked.width, asked.height, layout).pixels)
