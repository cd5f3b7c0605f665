"""Effect of words that a model never saw: the same captions with more and more unknown words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from services.trainer.evaluation.drawing import prompt_pictures
from services.trainer.export import shipped_autoencoder, through
from services.trainer.judging.classifier import load_reader
from services.trainer.judging.confidence import calibrated
from services.trainer.judging.judge import judged, summary
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.rendering.renderer import Renderer
from services.trainer.training import runs
from services.trainer.words import FILLERS
from shared.models.card_lookup import SHIPPED
from shared.models.scenes import WORDINGS, Scene, caption, known_words

STRANGE = (
    "zebra", "tram", "glowing", "baroque", "ancient", "velvet", "lonely", "cinematic", "kitchen", "violin", "misty",
    "enormous", "quantum", "marble", "dreamy", "orange", "juggling", "skyscraper", "rusty", "whimsical",
)  # fmt: skip
"""Words of everyday prompts that are neither in the grammar nor among the filler words of training."""
COUNTS = (0, 1, 2, 4)
"""Numbers of unknown words per caption."""


def measure_strange_words(
    names: Sequence[str], work: Path, models: Path, out: Path, count: int, steps: int = 50
) -> dict[str, Any]:
    """Judge the same `count` held-out captions at 64×64 with each of `COUNTS` unknown words; add to
    `out/strange-words.json`."""
    renderer, reader = Renderer(work / "sprites"), load_reader(models / "judge")
    bar = calibrated(renderer, reader, through(shipped_autoencoder(models)), max(64, 8 * count))
    scenes = balanced_scenes(count, seed=300)
    path = out / "strange-words.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        found[name] = {"captions": count, "bar": asdict(bar), "by_words": {}}
        for words in COUNTS:
            prompts = strange_captions(scenes, words)
            pictures = prompt_pictures(models / name, prompts, steps=steps, guidance=SHIPPED[name].default_guidance)
            scores = summary(judged(np.asarray(pictures), scenes, renderer, reader, bar))
            found[name]["by_words"][str(words)] = scores
            runs.log.info("strange words", name=name, words=words, **{k: round(v, 3) for k, v in scores.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def strange_captions(scenes: Sequence[Scene], words: int) -> list[str]:
    """Return each scene's caption in its own wording, with `words` unknown words at random but reproducible places."""
    found = []
    for i, scene in enumerate(scenes):
        rng = random.Random(i)
        said = caption(scene, i % WORDINGS).split(" ")
        for word in rng.sample(STRANGE, words):
            said.insert(rng.randint(0, len(said)), word)
        found.append(" ".join(said))
    return found


assert not set(STRANGE) & {*known_words(), *FILLERS}
