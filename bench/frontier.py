"""Quality of images from noise by steps and sampler: the frontier that a cache must beat.

    python -m bench.frontier --count 512
    python -m bench.frontier --count 16 --steps 50 5 3 --samplers ddim dpm++2m

The engine generates the second prompt of scene pairs (those of `afterimage profile`) with the same seed at every point.
A point is T and a sampler; the first one is the baseline. Only pairs are used whose second scene combines object,
background and style as the bundled weights never saw it. The Fréchet distance is the distance to images of the same
prompts with other seeds, at the baseline's T and sampler.

Intervals are of 95 %: Fieller's bounds for CLIP ratios (each one-sided), bootstrapped over prompts for attributes, and
delete-half jackknife for Fréchet distances, whose rows must not repeat.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bench.measuring.frechet import Features, difference_of_distances, frechet_distance
from bench.measuring.judging import BATCH, LOOKS, Verdict, judge_pictures, look_against, open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from services.cli.profiles.pairs import ScenePair, scene_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, Left
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import vector_from
from shared.models.card_lookup import find_card
from shared.models.confidence import ratio_bounds
from shared.models.scenes import Scene, never_trained
from shared.runtime.progress import Remaining

STEPS = (50, 20, 10, 5, 4, 3, 2)
SAMPLERS = ("ddim", "dpm++2m")
Interval = tuple[float, float, float]
"""Value, lower and upper bound."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to generate every image."""

    sampler: str
    steps: int

    def __str__(self) -> str:
        return f"{self.sampler}, T = {self.steps}"


@dataclass(frozen=True, slots=True)
class Generated:
    """The images of one point as PNGs by pair, with their cost."""

    pictures: Mapping[int, bytes]
    steps_run: float
    """Mean per image."""
    processor_ms: float
    """Processor time of this process per image: denoising and decoding."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Verdicts and CLIP features of one point's images, in the order of the pairs."""

    generated: Generated
    verdicts: Sequence[Verdict]
    features: Features


def held_out_pairs(count: int, seed: int) -> list[ScenePair]:
    """Return the first `count` scene pairs whose second scene the bundled weights never saw in training."""
    unseen, pairs = set(never_trained()), scene_pairs(1000 * count, seed)
    return list(islice((pair for pair in pairs if _triple(pair.after) in unseen), count))


def _triple(scene: Scene) -> tuple[str, str, str]:
    return scene.object, scene.background, scene.style


def generate(
    family: Family, pairs: Sequence[ScenePair], point: Point, *, rows: int, other_seed: bool = False
) -> Generated:
    """Generate one image per pair from noise, `rows` at a time; `other_seed`: with the seed after the pair's."""
    card = family.card
    engine = Engine({card.name: family}, max_rows=rows, tell_every_s=0.0)
    for pair in pairs:
        engine.submit(
            Task(
                str(pair.number), card.name, pair.after_text, card.default_size, point.steps, card.default_guidance,
                seed=pair.after_seed + other_seed, sampler=point.sampler,
            )
        )  # fmt: skip
    pixels, steps = {}, 0
    remaining, begun = Remaining(str(point), point.steps * len(pairs)), time.process_time()
    while not engine.idle:
        for event in engine.step():
            match event:
                case Advanced():
                    remaining.advance()
                case Finished(id=name):
                    pixels[int(name)] = event.pixels
                    steps += event.steps_run
                case Left(error=error):
                    raise error
    spent = time.process_time() - begun
    pictures = {number: encode_png(some) for number, some in pixels.items()}
    return Generated(pictures, steps / len(pairs), 1000 * spent / len(pairs))


def score(generated: Generated, pairs: Sequence[ScenePair], encoder: Encoder) -> Scored:
    places = {place: generated.pictures[pair.number] for place, pair in enumerate(pairs)}
    prompts, scenes = [pair.after_text for pair in pairs], [pair.after for pair in pairs]
    verdicts = judge_pictures(places, prompts, scenes, encoder)
    return Scored(generated, [verdicts[place] for place in places], features_of(list(places.values()), encoder))


def features_of(pictures: Sequence[bytes], encoder: Encoder) -> Features:
    """Return the CLIP embeddings of PNGs, (images, dim)."""
    some = [pictures[start : start + BATCH] for start in range(0, len(pictures), BATCH)]
    return np.stack([vector_from(one.vector) for part in some for one in encoder.images(part)]).astype(np.float64)


def figures_of(points: Mapping[Point, Scored], reference: Features) -> list[dict[str, Any]]:
    """Return one row per point; the first point is the baseline of CLIP ratio, look and differences."""
    baseline = next(iter(points.values()))
    clip0, right0 = _clips(baseline), _all_right(baseline)
    distance0 = frechet_distance(baseline.features, reference)
    rows = []
    for point, own in points.items():
        clips, right = _clips(own), _all_right(own)
        same = own is baseline
        more = (0.0, 0.0, 0.0) if same else difference_of_distances(own.features, baseline.features, reference)
        look = look_against(own.generated.pictures, own.generated.pictures, baseline.generated.pictures)
        rows.append(
            {
                "sampler": point.sampler,
                "steps": point.steps,
                "images": len(clips),
                "steps_run": own.generated.steps_run,
                "processor_ms": own.generated.processor_ms,
                "clip": fmean(clips),
                "clip_ratio": (sum(clips) / sum(clip0), *((1.0, 1.0) if same else ratio_bounds(clips, clip0))),
                "attributes": bootstrapped(right),
                "attributes_more": bootstrapped(right - right0),
                **{name: look[name] for name in LOOKS},
                "frechet": distance0 + more[0],
                "frechet_more": more,
            }
        )
    return rows


def bootstrapped(values: Features, rounds: int = 2000, seed: int = 0) -> Interval:
    """Return the mean and its 95 % percentile interval over resampled prompts (Efron 1979); nan for no values."""
    if not len(values):
        return (float("nan"),) * 3
    drawn = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def _clips(scored: Scored) -> list[float]:
    return [max(one.clip, 0.0) for one in scored.verdicts]  # a CLIP score is never below 0 (Hessel et al., CLIPScore)


def _all_right(scored: Scored) -> Features:
    """Return 1 or 0 per image: whether all judged attributes are right; empty without a judge."""
    return np.array([float(all(one.right.values())) for one in scored.verdicts if one.right])


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ["sampler", "T", "ms", "CLIP ratio", "all attributes", *LOOKS, "Fréchet × 1000", "… more than the first"]
    return table(
        heads,
        [
            [
                row["sampler"], row["steps"], round(row["processor_ms"], 1), interval(row["clip_ratio"]),
                interval(row["attributes"]), *(f"{row[name]:.3f}" for name in LOOKS), f"{1000 * row['frechet']:.1f}",
                interval([1000 * value for value in row["frechet_more"]], 1),
            ]
            for row in rows
        ],
    )  # fmt: skip


def interval(values: Sequence[float], digits: int = 3) -> str:
    value, low, high = (f"{one:.{digits}f}" for one in values)
    return f"{value} ({low} to {high})"


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--count", type=int, default=64, help="prompts")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="numbers of steps T")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--seed", type=int, default=18, help="seed of the scene pairs")
    parser.add_argument("--rows", type=int, default=8, help="images that share a step")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    asked = parser.parse_args(given)
    if asked.count < 4:
        parser.error(f"--count: must be at least 4, so that half of the images have a covariance (got {asked.count})")
    quiet()
    torch.set_num_threads(asked.threads)
    on, card, encoder = machine(), find_card(asked.model), open_encoder("bundled:clip")
    family = load_family(card, device="cpu")
    pairs = held_out_pairs(asked.count, asked.seed)
    points = [Point(sampler, steps) for sampler, steps in product(asked.samplers, asked.steps)]
    generate(family, pairs[: asked.rows], Point(asked.samplers[0], 2), rows=asked.rows)  # the first steps are slower
    others = generate(family, pairs, points[0], rows=asked.rows, other_seed=True)
    reference = features_of([others.pictures[pair.number] for pair in pairs], encoder)
    scored = {point: score(generate(family, pairs, point, rows=asked.rows), pairs, encoder) for point in points}
    rows = figures_of(scored, reference)
    print(report(rows))
    settings = settings_of(asked) | {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash}
    record("frontier", {"points": rows}, settings, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
