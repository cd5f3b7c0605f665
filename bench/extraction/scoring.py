"""Scores of an extractor: token F1 against labelled spans, and exact answers for captions whose parts are known."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring.recording import quantile
from services.text_extractor import Extraction, Extractor, Span
from shared.domain.parts import Parts
from shared.models.scenes import CLIP_WORDINGS, WORDINGS, held_out, random_moving_scene, random_scene
from shared.models.scenes.parts import caption_parts, clip_caption_parts, wording_held_out

LABELS = Path(__file__).with_name("labels.json")
LATER = Path(__file__).with_name("labels_later.json")
"""Prompts that were labelled when the grammar was finished."""
PREPOSITIONS = re.compile(
    r"\b(?:in|on|at|inside|under|underwater|above|over|near|by|through|across|along|behind|around|against|during)\b",
    re.IGNORECASE,
)


class Split:
    """The baseline: object before the first preposition of a place, background from it to the next comma."""

    id = "split"
    seats = 256

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        return [_split(prompt) for prompt in prompts]


def _split(prompt: str) -> Extraction:
    first = PREPOSITIONS.search(prompt)
    at = first.start() if first else len(prompt)
    comma = prompt.find(",", at)
    background = (at, len(prompt) if comma < 0 else comma) if first else None
    return Extraction((0, at) if prompt[:at].strip() else None, background, sure=True)


@dataclass(frozen=True, slots=True)
class Labelled:
    """One prompt with the spans that were marked by reading it."""

    prompt: str
    object: Span | None
    background: Span | None


def labelled(prompts: Sequence[str], labels: Path = LABELS) -> list[Labelled]:
    """Return the labelled rows, with their texts from the whole column of prompts."""
    rows = json.loads(labels.read_text(encoding="utf-8"))["labels"]
    return [Labelled(prompts[row["row"]], _span(row["object"]), _span(row["background"])) for row in rows]


def _span(borders: list[int] | None) -> Span | None:
    return None if borders is None else (borders[0], borders[1])


def token_f1(text: str, found: Span | None, wanted: Span | None) -> float:
    """Return F1 over the words of both spans, by their places in the text; 1 when both are empty."""
    one, other = _places(text, found), _places(text, wanted)
    if not one and not other:
        return 1.0
    return 2 * len(one & other) / (len(one) + len(other))


def _places(text: str, span: Span | None) -> set[int]:
    return (
        {match.start() for match in re.finditer(r"\w+", text[: span[1]]) if match.start() >= span[0]} if span else set()
    )


def captions(count: int, seed: int, *, untrained: bool = False) -> Iterator[tuple[str, Parts]]:
    """Yield captions of random scenes, images and clips in turn, each in one of all wordings.

    untrained: only the wordings, and of images the combinations, that no extractor is trained on.
    """
    rng = random.Random(seed)
    clips, images = (
        [one for one in range(count_of) if not untrained or wording_held_out(one)]
        for count_of in (CLIP_WORDINGS, WORDINGS)
    )
    for number in range(count):
        if number % 2:
            yield clip_caption_parts(random_moving_scene(rng), rng.choice(clips))
        else:
            scene = random_scene(rng)
            while untrained and not held_out(scene):
                scene = random_scene(rng)
            yield caption_parts(scene, rng.choice(images))


def judged(extractor: Extractor, rows: Sequence[Labelled]) -> dict[str, Any]:
    """Return an extractor's figures on labelled prompts; latencies are those of one prompt at a time, uncached."""
    found, seconds, processor = list[Extraction](), list[float](), list[float]()
    for row in rows:
        start, used = time.monotonic(), time.process_time()
        found += extractor.extract([row.prompt])
        seconds.append(time.monotonic() - start)
        processor.append(time.process_time() - used)
    scores = [
        (token_f1(row.prompt, one.object, row.object), token_f1(row.prompt, one.background, row.background), one.sure)
        for row, one in zip(rows, found, strict=True)
    ]
    sure = [score for score in scores if score[2]]
    named = [row.object is not None and row.background is not None for row in rows]
    both = [bool(one.sure and one.object and one.background) for one in found]
    times = {"": seconds, "processor_": processor}
    return {
        "rows": len(rows),
        "object_f1": _mean([score[0] for score in scores]),
        "background_f1": _mean([score[1] for score in scores]),
        "sure": _mean([float(score[2]) for score in scores]),
        "object_f1_sure": _mean([score[0] for score in sure]),
        "background_f1_sure": _mean([score[1] for score in sure]),
        "both_sure": sum(both),
        "both_sure_and_named": sum(one and other for one, other in zip(both, named, strict=True)),
        "both_named": sum(named),
        **{
            f"{kind}p{q}_ms": round(1000 * quantile(taken, q / 100), 3)
            for kind, taken in times.items()
            for q in (50, 99)
        },
    }


def exact(extractor: Extractor, texts: Sequence[tuple[str, Parts]]) -> dict[str, Any]:
    """Return the shares of captions whose parts are both found exactly, and whose answers are sure."""
    found = [extractor.extract([text])[0] for text, _ in texts]
    right = [one.parts(text) == parts for (text, parts), one in zip(texts, found, strict=True)]
    return {
        "captions": len(texts),
        "exact": _mean([*map(float, right)]),
        "sure": _mean([float(one.sure) for one in found]),
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else float("nan")
