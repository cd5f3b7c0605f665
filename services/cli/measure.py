"""Draws scene pairs on the engine and scores them: the raw rows of Algorithm 2 (NIRVANA §5.3.1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from services.cli.pairs import ScenePair, asked_for, right
from services.embedder.encoder import Encoder
from services.gpu_worker.codecs import decode_state, encode_png, encode_state
from services.gpu_worker.engine import Engine
from services.gpu_worker.events import Advanced, BatchRan, Finished, LatentCaptured, Left
from services.gpu_worker.families import Family
from services.gpu_worker.rows import FromState, Latent, Pixels, Task
from services.retriever.profile import ProfileRow
from shared.types import vector_from

Judge = Callable[[Any], Mapping[str, Sequence[str]]]
"""Pictures (B, height, width, 3) uint8 to each attribute's values."""
OnStep = Callable[[], None]
_FLOOR = 0.01
"""A picture from noise whose CLIP score is below this has nothing that a ratio could compare with."""


@dataclass
class Drawn:
    pixels: dict[str, Pixels] = field(default_factory=dict)
    states: dict[tuple[str, int], Latent] = field(default_factory=dict)


@dataclass(frozen=True)
class Profiler:
    """Everything a measurement needs; one pair costs 2·T + Σ(T − K) steps."""

    family: Family
    encoder: Encoder
    judge: Judge | None
    ks: Sequence[int]
    steps: int
    codec: str = "fp16"
    fresh_noise: float = 0.0
    max_rows: int = 8

    @property
    def steps_per_pair(self) -> int:
        return 2 * self.steps + sum(self.steps - k for k in self.ks)

    def measure(self, pairs: Sequence[ScenePair], on_step: OnStep) -> Iterator[dict[str, Any]]:
        """One record per pair and K, in order; `pairs` share batches, so a few at a time are faster."""
        sources = [task for pair in pairs for task in self._from_noise(pair)]
        drawn = self._draw(sources, on_step)
        hits = [self._from_state(pair, k, drawn.states[f"{pair.number}/before", k]) for pair in pairs for k in self.ks]
        drawn.pixels |= self._draw(hits, on_step).pixels
        for pair in pairs:
            yield from self._records(pair, drawn)

    def _from_noise(self, pair: ScenePair) -> list[Task]:
        before = self._task(f"{pair.number}/before", pair.before_text, pair.before_seed, capture_steps=tuple(self.ks))
        return [before, self._task(f"{pair.number}/noise", pair.after_text, pair.after_seed)]

    def _from_state(self, pair: ScenePair, k: int, state: Latent) -> Task:
        kept = decode_state(encode_state(state, self.codec), self.codec)  # as the cache would give it back
        start = FromState(kept, k, self.fresh_noise, pair.after_seed)
        return self._task(f"{pair.number}/{k}", pair.after_text, pair.after_seed, start=start)

    def _task(self, task_id: str, prompt: str, seed: int, **more: Any) -> Task:
        card = self.family.card
        size, guidance = card.default_size, card.default_guidance
        return Task(task_id, card.name, prompt, size, self.steps, guidance, seed, **more)

    def _draw(self, tasks: Sequence[Task], on_step: OnStep) -> Drawn:
        engine = Engine({self.family.card.name: self.family}, max_rows=self.max_rows, tell_every_s=0.0)
        drawn = Drawn()
        for task in tasks:
            engine.submit(task)
        while not engine.idle:
            for event in engine.step():
                match event:
                    case Advanced():
                        on_step()
                    case LatentCaptured(id=name, step=step, latent=latent):
                        drawn.states[name, step] = latent
                    case Finished(id=name, pixels=pixels):
                        drawn.pixels[name] = pixels
                    case Left(error=error):
                        raise error
        return drawn

    def _records(self, pair: ScenePair, drawn: Drawn) -> Iterator[dict[str, Any]]:
        names = ["noise", *(str(k) for k in self.ks)]
        pictures = [drawn.pixels[f"{pair.number}/{name}"] for name in names]
        texts = [vector_from(one.vector) for one in self.encoder.texts([pair.before_text, pair.after_text])]
        found = [vector_from(one.vector) for one in self.encoder.images([encode_png(pixels) for pixels in pictures])]
        scores = [float(vector @ texts[1]) for vector in found]
        judged = self.judge(np.stack(pictures)) if self.judge else {}
        correct = [right(pair.after, {name: values[i] for name, values in judged.items()}) for i in range(len(names))]
        for i, k in enumerate(self.ks, 1):
            yield {
                "pair": pair.number,
                "kind": pair.kind,
                "k": k,
                "similarity": float(texts[0] @ texts[1]),
                "score": scores[i],
                "score_from_noise": scores[0],
                "right": correct[i],
                "right_from_noise": correct[0],
                "asked_for": list(asked_for(pair)),
            }


def profile_row(record: Mapping[str, Any]) -> ProfileRow | None:
    """The record as Algorithm 2 wants it; None when the picture from noise is so bad that no ratio means anything."""
    if record["score_from_noise"] < _FLOOR:
        return None
    asked, judged = record["asked_for"], bool(record["right"])
    return ProfileRow(
        k=record["k"],
        similarity=record["similarity"],
        quality_ratio=max(record["score"], 0.0) / record["score_from_noise"],
        kept=all(record["right"][name] for name in asked) if asked and judged else None,
        kept_from_noise=all(record["right_from_noise"][name] for name in asked) if asked and judged else None,
        kind=record["kind"],
    )


def measure_latency(family: Family, batches: Sequence[int], steps: int = 6) -> dict[str, Any]:
    """Median seconds of one denoising step by rows in the batch, and of a picture's decoding."""
    card = family.card
    step_s, decode_s = {}, []
    for rows in batches:
        engine, seconds = Engine({card.name: family}, max_rows=rows), []
        for row in range(rows):
            engine.submit(
                Task(str(row), card.name, "latency", card.default_size, steps, card.default_guidance, seed=row)
            )
        begun = time.monotonic()
        while not engine.idle:
            for event in engine.step():
                if isinstance(event, BatchRan):
                    seconds.append(event.seconds)
                elif isinstance(event, Finished):
                    decode_s.append(event.decode_s)
        step_s[rows] = median(seconds[1:])  # the first is slower
        if time.monotonic() - begun > 60.0:
            break
    return {"step_s": step_s, "decode_s": median(decode_s), "size": str(card.default_size)}
