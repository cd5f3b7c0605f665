"""Measure what each state codec costs in quality, and choose the smallest codec that holds every bound at each K."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from services.cli.profiles.judging import Judge, vectors_of
from services.cli.profiles.measure import Profiler
from services.cli.profiles.pairs import ScenePair, asked_for
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromNoise, FromState, Latent, Pixels, Start, Task
from services.gpu_worker.families import Family
from services.gpu_worker.jobs import keyframes
from services.gpu_worker.jobs.codecs import decode_run, decode_state, encode_run, encode_state
from services.gpu_worker.jobs.keyframes import Keyframes
from services.retriever.planning import fresh_seed
from shared.domain.types import vector_from
from shared.models.confidence import ratio_bounds
from shared.models.quality import BOUNDS, Measured, Measures, Quality, compare, likeness, look
from shared.models.state_codecs import OF_CLIPS, PLAIN, SMALLEST_FIRST, CodecLevel

NOISE = "noise"
"""Codec of the records of images from noise, whose K is 0."""
AT_A_TIME = 8
"""Pairs of images that share batches; a killed run loses at most this many. A clip fills a batch alone."""

SCREENED = 24
"""Pairs after which a codec is left out if its means break a bound."""

Record = Mapping[str, Any]
Kept = tuple[int, str]
"""K and codec of one image."""


@dataclass(frozen=True)
class CodecProfiler:
    """Models and parameters of a comparison of codecs.

    The second prompt of each pair is generated from noise and from the first prompt's states. Pair, seed and K are the
    same for all codecs, so only the codec differs.
    """

    family: Family
    encoder: Encoder
    judge: Judge | None
    steps: int
    max_rows: int = 8
    frames: int = 1
    """Frames of each clip; 1: images."""
    of_runs: Mapping[str, Keyframes] = field(default_factory=lambda: {keyframes.NAME: Keyframes()})
    """Codecs that see all states of a run, by name."""
    together: Sequence[int] = ()
    """K of a run's states that those codecs see besides the measured ones."""

    @property
    def at_a_time(self) -> int:
        """Return the number of pairs whose records are written together."""
        return AT_A_TIME if self.frames == 1 else 1

    @property
    def codecs(self) -> Sequence[str]:
        """Codecs that are tried, the smallest first."""
        return [codec for codec in SMALLEST_FIRST if self.frames > 1 or codec not in OF_CLIPS]

    def measure(self, pairs: Sequence[ScenePair], wanted: Mapping[int, Sequence[Kept]]) -> Iterator[dict[str, Any]]:
        """Yield one record for each pair, K and codec. wanted: the images by number of the pair; (0, NOISE): from
        noise."""
        sizes: dict[str, int] = {}
        images = self._images(pairs, wanted, sizes)
        for pair in pairs:
            pixels = [images[_name(pair, *kept)] for kept in wanted[pair.number]]
            judged = self._measures(pair, pixels, images[_before(pair)])
            for kept, (measures, share) in zip(wanted[pair.number], judged, strict=True):
                yield {
                    "pair": pair.number,
                    "steps": self.steps,
                    "k": kept[0],
                    "codec": kept[1],
                    "bytes": sizes.get(_name(pair, *kept), 0),
                    "measures": {name: value for name, value in asdict(measures).items() if value is not None},
                    "right": share,
                }

    def _images(
        self, pairs: Sequence[ScenePair], wanted: Mapping[int, Sequence[Kept]], sizes: dict[str, int]
    ) -> dict[str, Pixels]:
        card = self.family.card
        engine = Engine({card.name: self.family}, max_rows=self.max_rows, tell_every_s=0.0)
        captured: dict[str, dict[int, LatentCaptured]] = {}
        by_before = {_before(pair): pair for pair in pairs}
        images: dict[str, Pixels] = {}
        for pair in pairs:
            ks = self._captured(wanted[pair.number])
            engine.submit(self._task(_before(pair), pair.before_text, pair.before_seed, capture_steps=ks))
            if (0, NOISE) in wanted[pair.number]:
                engine.submit(self._task(_name(pair, 0, NOISE), pair.after_text, pair.after_seed))
        while not engine.idle:
            for event in engine.step():
                match event:
                    case LatentCaptured(id=name, step=step):
                        pair = by_before[name]
                        captured.setdefault(name, {})[step] = event
                        if step < self._captured(wanted[pair.number])[-1]:  # some codecs see all states of a run
                            continue
                        for k, codec, size, latent in self._coded(captured.pop(name), wanted[pair.number]):
                            own = _name(pair, k, codec)
                            sizes[own] = size
                            start = FromState(latent, k, 0.0, fresh_seed(pair.after_seed, name))
                            engine.submit(self._task(own, pair.after_text, pair.after_seed, start))
                    case Finished(id=name, pixels=pixels):
                        images[name] = pixels
                    case Left(error=error):
                        raise error
        return images

    def _captured(self, wanted: Sequence[Kept]) -> tuple[int, ...]:
        """Return the K of the states that the wanted images need, ascending."""
        ks = {k for k, _ in wanted if k}
        return tuple(sorted({*ks, *self.together} if ks else ()))

    def _coded(
        self, states: Mapping[int, LatentCaptured], wanted: Sequence[Kept]
    ) -> Iterator[tuple[int, str, int, Latent]]:
        """Yield K, codec, bytes and decoded latent of each wanted state of a run."""
        windows = self.family.card.frames.windows(self.frames)
        runs = dict[str, dict[int, tuple[bytes, str]]]()
        for name in {codec for _, codec in wanted} & self.of_runs.keys():
            ks = {k for k, codec in wanted if codec == name} | {*self.together}
            runs[name] = encode_run({k: states[k].latent for k in sorted(ks)}, self.of_runs[name])
        decoded = {name: decode_run(blobs) for name, blobs in runs.items()}
        for k, codec in wanted:
            if codec in runs:
                yield k, codec, len(runs[codec][k][0]), decoded[codec][k]
            elif k:
                data = encode_state(states[k].latent, codec, states[k].noises, windows)
                yield k, codec, len(data), decode_state(data, codec)

    def _task(
        self, name: str, prompt: str, seed: int, start: Start | None = None, capture_steps: tuple[int, ...] = ()
    ) -> Task:
        card = self.family.card
        return Task(
            name, card.name, prompt, card.default_size, self.steps, card.default_guidance, seed=seed,
            frames=self.frames, start=start or FromNoise(), capture_steps=capture_steps,
        )  # fmt: skip

    def _measures(
        self, pair: ScenePair, images: Sequence[Pixels], source: Pixels
    ) -> Iterator[tuple[Measures, float | None]]:
        """Yield each image's measures, and its share of right attributes."""
        text = vector_from(self.encoder.texts([pair.after_text])[0].vector)
        vectors = vectors_of(self.encoder, images)
        judged = self.judge(images, pair.after) if self.judge else [{} for _ in images]
        asked = asked_for(pair)
        for pixels, vector, shown in zip(images, vectors, judged, strict=True):
            measures = replace(
                look(pixels),
                # a CLIP score is never below 0 (Hessel et al., CLIPScore)
                score=max(float(vector @ text), 0.0),
                shown=all(shown[name] for name in asked) if asked and shown else None,
                likeness=likeness(pixels, source),
            )
            yield measures, fmean(shown.values()) if shown else None


def codec_profiler(profiler: Profiler) -> CodecProfiler:
    return CodecProfiler(
        profiler.family, profiler.encoder, profiler.judge, profiler.steps, profiler.max_rows, profiler.frames
    )


def _before(pair: ScenePair) -> str:
    return f"{pair.number}/before"


def _name(pair: ScenePair, k: int, codec: str) -> str:
    return f"{pair.number}/{k}/{codec}"


def measured_codecs(
    profiler: CodecProfiler,
    pairs: Sequence[ScenePair],
    wanted: Iterable[Kept],
    path: Path,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Record]:
    """Return the records of all pairs and of `wanted`; `path` holds those of earlier runs, one JSON line each.

    Each chunk of pairs is on disk before the next one starts.
    """
    kept = list(wanted)
    done = read_records(path)
    have = {(record["pair"], record["steps"], record["k"], record["codec"]) for record in done}
    missing = {pair.number: [one for one in kept if (pair.number, profiler.steps, *one) not in have] for pair in pairs}
    left = [pair for pair in pairs if missing[pair.number]]
    advance(len(pairs) - len(left))
    with path.open("a", encoding="utf-8") as file:
        for first in range(0, len(left), profiler.at_a_time):
            chunk = left[first : first + profiler.at_a_time]
            records = list(profiler.measure(chunk, missing))
            file.write("".join(json.dumps(record) + "\n" for record in records))
            file.flush()
            done += records
            advance(len(chunk))
    numbers = {pair.number for pair in pairs}
    return [record for record in done if record["steps"] == profiler.steps and record["pair"] in numbers]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of earlier runs; drop a line that a killed run left incomplete."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def choose_codecs(
    profiler: CodecProfiler,
    pairs: Sequence[ScenePair],
    ks: Sequence[int],
    path: Path,
    advance: Callable[[int], None] = lambda count: None,
) -> list[CodecLevel]:
    """Return the codec of each K: the smallest that breaks no bound.

    A K tries a larger codec only after the smaller ones broke a bound. A codec whose means break a bound on the first
    SCREENED pairs is not measured on the others.
    """
    base = [(0, NOISE), *((k, PLAIN) for k in ks)]
    why_not: dict[int, dict[str, str]] = {k: {} for k in ks}
    found: dict[int, str] = {}
    for codec in profiler.codecs:
        for some, clearly in ((pairs[:SCREENED], True), (pairs, False)):
            wanted = [k for k in ks if k not in found and codec not in why_not[k]]
            records = measured_codecs(profiler, some, base + [(k, codec) for k in wanted], path, advance)
            for k in wanted:
                if broken := broken_bounds(records, k, codec, clearly=clearly):
                    why_not[k][codec] = ", ".join(broken)
        found |= {k: codec for k in ks if k not in found and codec not in why_not[k]}
    return [
        CodecLevel(profiler.steps, k, codec, len(pairs), mean_bytes(records, k, codec), why_not[k])
        for k in ks
        for codec in [found.get(k, PLAIN)]
    ]


def mean_bytes(records: Iterable[Record], k: int, codec: str) -> float:
    return fmean(record["bytes"] for record in records if (record["k"], record["codec"]) == (k, codec))


def quality_of(records: Sequence[Record], k: int, codec: str, against: Kept) -> Quality:
    """Return the quality of the images from states of this codec, against the same pairs' images at `against`."""
    own, other = (_by_pair(records, one) for one in ((k, codec), against))
    both = sorted(own.keys() & other.keys())
    return compare([own[pair] for pair in both], [other[pair] for pair in both])


def attributes_of(records: Sequence[Record], k: int, codec: str, against: Kept) -> Measured | None:
    """Return the share of right attributes against that of the same pairs' images at `against`.

    All attributes of a scene count here, and not only those that a pair changes: 100 pairs then separate two codecs.
    None without a judge.
    """
    own, other = (
        {r["pair"]: r["right"] for r in records if (r["k"], r["codec"]) == one and r["right"] is not None}
        for one in ((k, codec), against)
    )
    both = sorted(own.keys() & other.keys())
    values, references = [own[pair] for pair in both], [other[pair] for pair in both]
    if not any(references):
        return None
    bound = ratio_bounds(values, references)[0]
    return Measured(fmean(values) / fmean(references), bound if math.isfinite(bound) else None, len(both))


def _by_pair(records: Sequence[Record], kept: Kept) -> dict[int, Measures]:
    return {
        record["pair"]: Measures(**record["measures"]) for record in records if (record["k"], record["codec"]) == kept
    }


def broken_bounds(records: Sequence[Record], k: int, codec: str, *, clearly: bool = False) -> list[str]:
    """Return the bounds that this codec breaks at K; none: every bound holds. `clearly`: its means break them, not
    only its confidence bounds.

    Against the images from noise, the codec must hold each bound that fp16 holds. Against the images from the same
    states in fp16, it must hold all bounds. So the codec costs no more than the bound where fp16 itself is below it: a
    closer prompt may start there. Variety is not measured, because every seed starts from the same bytes.
    """
    by_noise, by_fp16 = (quality_of(records, k, codec, one) for one in ((0, NOISE), (k, PLAIN)))
    by_fp16 = replace(by_fp16, attributes=attributes_of(records, k, codec, (k, PLAIN)))
    plain = quality_of(records, k, PLAIN, (0, NOISE))
    broken = []
    for name in (one.name for one in fields(Quality)):
        bound, unmeasured = BOUNDS[name], getattr(by_fp16, name) is None
        for words, measured, counts in (
            ("noise", getattr(by_noise, name), bound.holds(getattr(plain, name))),
            ("fp16", getattr(by_fp16, name), not unmeasured),
        ):
            if counts and not bound.holds(replace(measured, bound=measured.value) if clearly else measured):
                lowest = "unknown" if measured.bound is None else f"{measured.bound:.3f}"
                broken.append(f"{name} {measured.value:.3f} of {words}'s (bound {lowest})")
    return broken
