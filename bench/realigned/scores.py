"""Scores of the stored images, and the similarities of their prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.measuring.judging import BATCH, JUDGE
from bench.realigned.images import Plan, Store
from services.cli.profiles.pairs import ScenePair, right
from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import vector_from
from shared.models.quality import likeness, look
from shared.runtime.progress import Remaining

T = TypeVar("T")
LOOK = ("contrast", "saturation", "sharpness")
Scores = dict[tuple[int, str], dict[str, Any]]
"""(pair, image) → clip, right, contrast, saturation, sharpness and likeness to the source."""


def score(pairs: Sequence[ScenePair], plan: Plan, store: Store, encoder: Encoder, cache: Path) -> Scores:
    """Return the scores of every image of the plan and of the references; earlier ones come from `cache`."""
    from services.trainer.judging.classifier import load_judge

    judge, scores = load_judge(JUDGE), dict(_read(cache))
    names = [f"noise-{plan.steps}", *(plan.name(k, setting) for k, setting in plan.images())]
    missing = [(pair, name) for pair in pairs for name in names if (pair.number, name) not in scores]
    progress = Remaining("scoring", len(missing))
    texts: dict[str, Any] = {}
    with cache.open("a", encoding="utf-8") as file:
        for some in batched(missing, BATCH):
            pixels = [store.image(pair, "noise" if name.startswith("noise") else name) for pair, name in some]
            read = judge(np.stack(pixels))
            vectors = [vector_from(one.vector) for one in encoder.images([encode_png(one) for one in pixels])]
            for place, (pair, name) in enumerate(some):
                if pair.after_text not in texts:
                    texts[pair.after_text] = vector_from(encoder.texts([pair.after_text])[0].vector)
                seen = look(pixels[place])
                found = {
                    "clip": max(float(vectors[place] @ texts[pair.after_text]), 0.0),
                    "right": right(pair.after, {attribute: values[place] for attribute, values in read.items()}),
                    **{measure: getattr(seen, measure) for measure in LOOK},
                    "likeness": likeness(pixels[place], store.image(pair, f"before-{plan.steps}")),
                }
                scores[pair.number, name] = found
                file.write(json.dumps({"pair": pair.number, "image": name, **found}) + "\n")
            progress.advance(len(some))
    return scores


def _read(cache: Path) -> Iterator[tuple[tuple[int, str], dict[str, Any]]]:
    if cache.exists():
        for line in cache.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            yield (one.pop("pair"), one.pop("image")), one


def similarities(pairs: Sequence[ScenePair], encoder: Encoder) -> dict[int, float]:
    """Return the cosine of the two prompts of each pair."""

    def vectors(texts: Sequence[str]) -> list[Any]:
        return [vector_from(one.vector) for some in batched(texts, BATCH) for one in encoder.texts(some)]

    before, after = vectors([pair.before_text for pair in pairs]), vectors([pair.after_text for pair in pairs])
    return {pair.number: float(a @ b) for pair, a, b in zip(pairs, before, after, strict=True)}


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    yield from (items[start : start + size] for start in range(0, len(items), size))
