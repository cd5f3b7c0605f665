"""Generate scene pairs on the engine and score them: the raw rows of Algorithm 2 (NIRVANA §5.3.1; MoDM §5.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from services.cli.profiles.pairs import ScenePair, asked_for, right
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, BatchRan, Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromNoise, FromPicture, FromState, Latent, Pixels, Start, Task
from services.gpu_worker.families import Family
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state
from services.retriever.planning import fresh_seed
from services.retriever.profile import ProfileRow
from shared.domain.errors import CancelledError
from shared.domain.types import Vector, vector_from

Judge = Callable[[Any], Mapping[str, Sequence[str]]]
"""Function from images (B, height, width, 3) uint8 to each attribute's B values."""
OnStep = Callable[[], None]


@dataclass(frozen=True)
class Profiler:
    """Models, encoder and parameters of a measurement.

    `family` generates each second prompt of a pair from every K. The start is its own latent of the first prompt
    (NIRVANA §5.3.1), or the first prompt's finished image by `images_of` at the noise level of K (MoDM §5.2). The
    reference is the second prompt from noise, by `against`.
    """

    family: Family
    encoder: Encoder
    judge: Judge | None
    ks: Sequence[int]
    steps: int
    codec: str = "fp16"
    fresh_noise: float = 0.0
    max_rows: int = 8
    images_of: Family | None = None
    """None: start from latents of `family`."""
    against: Family | None = None
    """None: `family` itself."""

    @property
    def steps_per_pair(self) -> int:
        source = max(self.ks) if self.images_of is None else self._steps_of(self.images_of)
        return source + self._steps_of(self.against or self.family) + sum(self.steps - k for k in self.ks)

    def _steps_of(self, family: Family) -> int:
        """Return T of a run by this model; `steps` is the T of the measured model."""
        return self.steps if family is self.family else family.card.steps_for(self.steps, self.family.card)

    def measure(self, pairs: Sequence[ScenePair], on_step: OnStep) -> Iterator[dict[str, Any]]:
        """Yield one record per pair and K, in order. The pairs share batches, so several pairs at once are faster."""
        pictures = self._draw(pairs, on_step)
        for pair in pairs:
            yield from self._records(pair, pictures)

    def _first(self, pair: ScenePair) -> Iterator[Task]:
        """Yield the task of the image to start from, and the task of the reference."""
        if self.images_of is None:
            yield self._task(self.family, _source(pair), pair, capture_steps=tuple(self.ks))
        else:
            yield self._task(self.images_of, _source(pair), pair)
        yield self._task(self.against or self.family, f"{pair.number}/noise", pair)

    def _from_state(self, pair: ScenePair, k: int, state: Latent, noises: tuple[int, ...]) -> Task:
        kept = decode_state(encode_state(state, self.codec, noises), self.codec)  # with the loss of the cache's codec
        return self._reuse(pair, k, FromState(kept, k, self.fresh_noise, fresh_seed(pair.after_seed, _source(pair))))

    def _reuse(self, pair: ScenePair, k: int, start: Start) -> Task:
        return self._task(self.family, f"{pair.number}/{k}", pair, start=start)

    def _task(
        self,
        family: Family,
        name: str,
        pair: ScenePair,
        start: Start | None = None,
        capture_steps: tuple[int, ...] = (),
    ) -> Task:
        before = name == _source(pair)
        return Task(
            id=name,
            model=family.card.name,
            prompt=pair.before_text if before else pair.after_text,
            size=self.family.card.default_size,
            steps=self._steps_of(family),
            guidance=family.card.default_guidance,
            seed=pair.before_seed if before else pair.after_seed,
            start=start or FromNoise(),
            capture_steps=capture_steps,
        )

    def _draw(self, pairs: Sequence[ScenePair], on_step: OnStep) -> dict[str, Pixels]:
        """Return each pair's images, by `<pair>/before` (where one was finished), `<pair>/noise` and `<pair>/<K>`.

        Each run is submitted as soon as its start exists, so the batch is nearly always full. A run of which only
        latents are needed is cancelled after the last of them.
        """
        families = [family for family in (self.family, self.images_of, self.against) if family is not None]
        engine = Engine({family.card.name: family for family in families}, max_rows=self.max_rows, tell_every_s=0.0)
        pictures: dict[str, Pixels] = {}
        sources = {_source(pair): pair for pair in pairs}
        for pair in pairs:
            for task in self._first(pair):
                engine.submit(task)
        while not engine.idle:
            for event in engine.step():
                match event:
                    case Advanced():
                        on_step()
                    case LatentCaptured(id=name, step=step, latent=latent, noises=noises):
                        engine.submit(self._from_state(sources[name], step, latent, noises))
                        if step == max(self.ks):
                            engine.cancel(name)
                    case Finished(id=name, pixels=pixels):
                        pictures[name] = pixels
                        for k in self.ks if name in sources else ():
                            engine.submit(self._reuse(sources[name], k, FromPicture(pixels, k)))
                    case Left(error=error) if not isinstance(error, CancelledError):
                        raise error
        return pictures

    def _records(self, pair: ScenePair, drawn: Mapping[str, Pixels]) -> Iterator[dict[str, Any]]:
        names = ["noise", *(str(k) for k in self.ks)]
        pictures = [drawn[f"{pair.number}/{name}"] for name in names]
        text = self._vector_of_text(pair.after_text)
        scores = [float(vector @ text) for vector in self._vectors_of(pictures)]
        if self.images_of is None:
            similarity = float(self._vector_of_text(pair.before_text) @ text)
        else:  # retrieval compares with the image's own embedding (MoDM eq. 1)
            similarity = float(self._vectors_of([drawn[_source(pair)]])[0] @ text)
        judged = self.judge(np.stack(pictures)) if self.judge else {}
        correct = [right(pair.after, {name: values[i] for name, values in judged.items()}) for i in range(len(names))]
        for i, k in enumerate(self.ks, 1):
            yield {
                "pair": pair.number,
                "kind": pair.kind,
                "k": k,
                "similarity": similarity,
                "score": scores[i],
                "score_from_noise": scores[0],
                "right": correct[i],
                "right_from_noise": correct[0],
                "asked_for": list(asked_for(pair)),
            }

    def _vector_of_text(self, text: str) -> Vector:
        return vector_from(self.encoder.texts([text])[0].vector)

    def _vectors_of(self, pictures: Sequence[Pixels]) -> list[Vector]:
        return [vector_from(one.vector) for one in self.encoder.images([encode_png(pixels) for pixels in pictures])]


def _source(pair: ScenePair) -> str:
    return f"{pair.number}/before"


def profile_row(record: Mapping[str, Any]) -> ProfileRow:
    """Return the record as a row of Algorithm 2; a CLIP score is never below 0 (Hessel et al., CLIPScore)."""
    asked, judged = record["asked_for"], bool(record["right"])
    return ProfileRow(
        k=record["k"],
        similarity=record["similarity"],
        score=max(record["score"], 0.0),
        score_from_noise=max(record["score_from_noise"], 0.0),
        kept=all(record["right"][name] for name in asked) if asked and judged else None,
        kept_from_noise=all(record["right_from_noise"][name] for name in asked) if asked and judged else None,
        kind=record["kind"],
    )


def measure_latency(family: Family, batches: Sequence[int], steps: int = 6) -> dict[str, Any]:
    """Return the median seconds of one denoising step, by batch size, and of the decoding of one image."""
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
    return {
        "step_s": step_s,
        "decode_s": median(decode_s),
        "size": str(card.default_size),
        "threads": torch.get_num_threads(),
        "device": _device_name(family),
    }


def _device_name(family: Family) -> str:
    """Return `cpu`, or the GPU's name; seconds of different devices do not compare."""
    device = family.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
