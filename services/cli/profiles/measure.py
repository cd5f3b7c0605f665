"""Generate scene pairs on the engine and score them: the raw rows of Algorithm 2 (NIRVANA §5.3.1; MoDM §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from services.cli.profiles.judging import Judge, vectors_of
from services.cli.profiles.pairs import (
    FURTHER,
    ScenePair,
    asked_for,
    changed,
    further_pairs,
    grammar_of,
    scene_pairs,
)
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromNoise, FromPicture, FromState, Latent, Pixels, Start, Task
from services.gpu_worker.families import Family
from services.gpu_worker.jobs.codecs import decode_state, encode_state
from services.retriever.planning import fresh_seed
from services.retriever.profile import ProfileRow
from shared.domain.types import Vector, vector_from
from shared.models.quality import Measures, likeness, look, spread
from shared.models.scenes import EDITS
from shared.models.state_codecs import codec_of

OnStep = Callable[[], None]
Images = Mapping[str, Pixels]
"""A pair's images: `before`, `noise` and `<K>`; with `+<n>` at the end of the n-th further seed (`varied`)."""
OnImages = Callable[[ScenePair, Images], None]
SEEDS = 3
"""Seeds of a prompt whose variety is measured."""
VARIED_EVERY = 8
"""One pair in VARIED_EVERY is measured for variety: 1.3 times the steps of a profile without variety."""


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
    """A codec, or `auto`: the one that the cache uses for states after K of T."""
    fresh_noise: float = 0.0
    max_rows: int = 8
    images_of: Family | None = None
    """None: start from latents of `family`."""
    against: Family | None = None
    """None: `family` itself."""
    reference_steps: int = 0
    """T of the reference; 0: `steps`. With another T, or another model `against`, the image from noise by `family` at
    `steps` is measured as K = 0."""
    variety: bool = True
    """Also measure variety, on one pair in VARIED_EVERY."""

    @property
    def frames(self) -> int:
        """Return the frames of each clip; 1: images."""
        return self.family.card.frames.default

    def pairs(self, count: int, further: int, seed: int | str) -> Sequence[ScenePair]:
        """Return the pairs to measure: `count`, then those of further kinds for the learned bound."""
        grammar = grammar_of(self.frames)
        return (*scene_pairs(count, seed, grammar), *further_pairs(further, seed, grammar))

    @property
    def measured(self) -> tuple[int, ...]:
        """Return the K of a pair's records: `ks`, after 0 where the reference has another T or is another model's."""
        return (*((0,) if self._apart else ()), *self.ks)

    @property
    def further(self) -> bool:
        """Whether the reference has another T."""
        return self.reference_steps not in (0, self.steps)

    @property
    def _apart(self) -> bool:
        others = self.against is not None and self.against.card.name != self.family.card.name
        return others or self.further

    @property
    def varied_noise(self) -> float:
        """Return the fresh noise of the images whose variety is measured. Without any, a deterministic sampler has no
        variety; an image as the start gets the request's own noise anyway."""
        return 0.0 if self.images_of else self.fresh_noise or 1.0

    def steps_of(self, pair: ScenePair, reference: bool = True) -> int:
        """Return the denoising steps of all runs of this pair. reference: whether those of the reference count."""
        noise = self._steps_of(self.against or self.family, self.reference_steps) * reference + self.steps * self._apart
        seeds = SEEDS if self._varies(pair) else 1
        from_k = len(self._seeds(pair)) * sum(self.steps - k for k in self.ks)
        return self._steps_of(self.images_of or self.family) + seeds * noise + from_k

    def _seeds(self, pair: ScenePair) -> Sequence[int]:
        """Return the numbers of the seeds that start at each K: 0 is the measured image, the others are for variety.

        Where the measured image has no fresh noise, it is not one of the images of SEEDS.
        """
        apart = self.images_of is None and not self.fresh_noise
        return range(SEEDS + apart) if self._varies(pair) else range(1)

    def _varies(self, pair: ScenePair) -> bool:
        return self.variety and varied(pair)

    def _steps_of(self, family: Family, steps: int = 0) -> int:
        """Return T of a run by this model; `steps` (default: the profiler's) is the T of the measured model."""
        own = steps or self.steps
        return own if family is self.family else family.card.steps_for(own, self.family.card)

    def measure(
        self,
        pairs: Sequence[ScenePair],
        on_step: OnStep,
        on_images: OnImages,
        references: dict[str, Pixels] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield one record per pair and K, in order. The pairs share batches, so several pairs at once are faster.

        references: the references of these pairs by task id; missing ones are generated and added.
        """
        images = self._draw(pairs, on_step, {} if references is None else references)
        for pair in pairs:
            if all(str(k) in images[pair.number] for k in self.ks):  # a pair without masks starts nothing
                on_images(pair, images[pair.number])
                yield from self._records(pair, images[pair.number])

    def _first(self, pair: ScenePair) -> Iterator[Task]:
        """Yield the task of the image to start from, and the tasks of the references."""
        captured = tuple(self.ks) if self.images_of is None else ()
        yield self._task(self.images_of or self.family, "before", pair, capture_steps=captured)
        reference = self.against or self.family
        for seed in range(SEEDS if self._varies(pair) else 1):
            noise = self._task(reference, "noise", pair, seed)
            yield replace(noise, steps=self._steps_of(reference, self.reference_steps), prompted_from=0)
            if self._apart:
                yield self._task(self.family, "0", pair, seed)

    def _captured(self, pair: ScenePair, name: str, k: int, state: Latent) -> Iterator[Task]:
        """Yield the tasks that start from the state after step k of the pair's task `name`, as the cache reads it."""
        for seed in self._seeds(pair):
            fresh = self.varied_noise if seed else self.fresh_noise
            noise_seed = fresh_seed(pair.after_seed + seed, f"{pair.number}/before")
            yield self._task(self.family, str(k), pair, seed, FromState(state, k, fresh, noise_seed))

    def _finished(self, pair: ScenePair, name: str, pixels: Pixels) -> Iterator[Task]:
        """Yield the tasks that start from the finished image or clip of the pair's task `name`."""
        for k in self.ks if self.images_of is not None and name == "before" else ():
            for seed in self._seeds(pair):
                yield self._task(self.family, str(k), pair, seed, FromPicture(pixels, k))

    def _task(
        self,
        family: Family,
        name: str,
        pair: ScenePair,
        seed: int = 0,
        start: Start | None = None,
        capture_steps: tuple[int, ...] = (),
    ) -> Task:
        before, steps = name == "before", self._steps_of(family)
        return Task(
            id=f"{pair.number}/{_image(name, seed)}",
            model=family.card.name,
            prompt=pair.before_text if before else pair.after_text,
            size=self.family.card.default_size,
            steps=steps,
            guidance=family.card.default_guidance,
            prompted_from=family.card.prompted_from(steps) if self._apart and start is None else 0,
            seed=pair.before_seed if before else pair.after_seed + seed,
            frames=self.frames,
            start=start or FromNoise(),
            capture_steps=capture_steps,
        )

    def _draw(
        self, pairs: Sequence[ScenePair], on_step: OnStep, references: dict[str, Pixels]
    ) -> dict[int, dict[str, Pixels]]:
        """Return each pair's images by the pair's number; add the references to `references`. Each run is submitted as
        soon as its start exists, so the batch is nearly always full."""
        families = [family for family in (self.family, self.images_of, self.against) if family is not None]
        engine = Engine({family.card.name: family for family in families}, max_rows=self.max_rows, tell_every_s=0.0)
        windows = self.family.card.frames.windows(self.frames)
        by_number = {pair.number: pair for pair in pairs}
        images: dict[int, dict[str, Pixels]] = {pair.number: {} for pair in pairs}
        for pair in pairs:
            for task in self._first(pair):
                if task.id in references:
                    images[pair.number][_name(task.id)] = references[task.id]
                else:
                    engine.submit(task)
        while not engine.idle:
            for event in engine.step():
                match event:
                    case Advanced():
                        on_step()
                    case LatentCaptured(id=name, step=step, latent=latent, noises=noises):
                        codec = codec_of(self.codec, self.family.card, step, self.steps)
                        kept = decode_state(encode_state(latent, codec, noises, windows), codec)
                        for task in self._captured(by_number[_number(name)], _name(name), step, kept):
                            engine.submit(task)
                    case Finished(id=name, pixels=pixels):
                        images[_number(name)][_name(name)] = pixels
                        if "/noise" in name:
                            references[name] = pixels
                        for task in self._finished(by_number[_number(name)], _name(name), pixels):
                            engine.submit(task)
                    case Left(error=error):
                        raise error
        return images

    def _records(self, pair: ScenePair, images: Images) -> Iterator[dict[str, Any]]:
        names = ["noise", *(str(k) for k in self.measured)]
        text = self._vector_of_text(pair.after_text)
        pictures = [images[name] for name in names]
        scores = [float(vector @ text) for vector in vectors_of(self.encoder, pictures)]
        # retrieval compares with the image's own embedding where an image is the start (MoDM eq. 1)
        image_similarity = float(vectors_of(self.encoder, [images["before"]])[0] @ text)
        similarity = image_similarity if self.images_of else self._similarity(pair)
        correct = self.judge(pictures, pair.after) if self.judge else [{} for _ in names]
        measured = [self._measures(pair, name, images) for name in names]
        for i, k in enumerate(self.measured, 1):
            yield {
                "pair": pair.number,
                "kind": pair.kind,
                "prompts": [pair.before_text, pair.after_text],
                "k": k,
                "similarity": similarity,
                "image_similarity": image_similarity,
                "score": scores[i],
                "score_from_noise": scores[0],
                "right": correct[i],
                "right_from_noise": correct[0],
                "asked_for": list(asked_for(pair)),
                "changed": list(changed(pair)),
                "measures": measured[i],
                "measures_from_noise": measured[0],
                "variety_noise": self.varied_noise,
            }

    def _measures(self, pair: ScenePair, name: str, images: Images) -> dict[str, float]:
        """Return look, likeness to the source and, for varied pairs, the spread over seeds of one image."""
        measures = replace(look(images[name]), likeness=likeness(images[name], images["before"]))
        if self._varies(pair):
            seeds = range(SEEDS) if name in ("noise", "0") else self._seeds(pair)[-SEEDS:]
            vectors = vectors_of(self.encoder, [images[_image(name, seed)] for seed in seeds])
            measures = replace(measures, spread=spread(vectors))
        return {name: value for name, value in asdict(measures).items() if value is not None}

    def _similarity(self, pair: ScenePair) -> float:
        return float(self._vector_of_text(pair.before_text) @ self._vector_of_text(pair.after_text))

    def _vector_of_text(self, text: str) -> Vector:
        return vector_from(self.encoder.texts([text])[0].vector)


def varied(pair: ScenePair) -> bool:
    """Return whether the pair is generated at several seeds; every kind of change equally often."""
    return pair.kind not in FURTHER and pair.number // len(EDITS) % VARIED_EVERY == 0


def _image(name: str, seed: int) -> str:
    return f"{name}+{seed}" if seed else name


def _name(task_id: str) -> str:
    return task_id.partition("/")[2]


def _number(name: str) -> int:
    return int(name.partition("/")[0])


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
        measures=Measures(**record.get("measures", {})),  # records of earlier versions have none
        measures_from_noise=Measures(**record.get("measures_from_noise", {})),
    )
