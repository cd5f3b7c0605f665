"""Quality and cost of few steps from noise, of the cache at fixed T, and of the cache whose plans choose T.

    python -m bench.frontier --count 512
    python -m bench.frontier --count 16 --steps 50 5 3 --samplers ddim --cached 5

The requests have the shares of real traffic (re-rolls, edits, new topics, prompts near another user's). First prompts
fill an empty cache, second prompts are measured. Every point generates the same second prompts with the same
seeds: from noise by the engine, or as the real planner plans them. The first point is the baseline. The second prompts
are scenes that combine object, background and style as the bundled weights never saw them. The Fréchet distance is the
distance to images of the same prompts with other seeds, at the baseline's T and sampler.

Runs of few steps from noise are also measured as the plan runs them: the first step without the prompt, where the
model's card says so. Variety is the distance between a re-rolled image and the first image of its prompt, as a share
of the baseline's.
Copying is the likeness of reused images to their source where the plan's relation is a new topic or another user's,
less the likeness of the baseline's image. The processor time includes PNG, lookups, states and inserts.

Intervals are of 95 %: Fieller's bounds for ratios and Student's t for copying (each one-sided), bootstrapped over
prompts for attributes, and delete-half jackknife for Fréchet distances, whose rows must not repeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np
import torch

from bench.measuring.frechet import Features
from bench.measuring.judging import BATCH, judge_pictures, open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of
from bench.traced.frontier_figures import AUTO, Point, Scored, against_few_steps, equal_quality, figures_of, report
from bench.traced.painting import Painter
from bench.traced.request_stream import Asked, Generated, Turn, serve_stream, stream
from services.cli.profiles.pairs import ScenePair, scene_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, Left
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import Relation, vector_from
from shared.models import served_card
from shared.models.quality import spread
from shared.models.scenes import Scene, never_trained
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging

STEPS = (50, 20, 10, 5, 4, 3, 2)
SAMPLERS = ("ddim", "dpm++2m")
CACHED = (50, 5)


def held_out_pairs(count: int, seed: int) -> list[ScenePair]:
    """Return the first `count` scene pairs whose second scene the bundled weights never saw in training."""
    unseen, pairs = set(never_trained()), scene_pairs(1000 * count, seed)
    return list(islice((pair for pair in pairs if _triple(pair.after) in unseen), count))


def _triple(scene: Scene) -> tuple[str, str, str]:
    return scene.object, scene.background, scene.style


def generate(family: Family, turns: Sequence[Turn], point: Point, *, rows: int) -> Generated:
    """Generate the second prompts from noise, `rows` at a time; then, untimed, the first seeds of the re-rolls."""
    begun = time.process_time()
    pictures, steps = drawn(family, {turn.number: turn.second for turn in turns}, point, rows=rows)
    spent = time.process_time() - begun
    rerolled = {turn.number: turn.first for turn in turns if turn.relation is Relation.REROLL}
    firsts, _ = drawn(family, rerolled, point, rows=rows)
    return Generated(pictures, steps / len(turns), 1000 * spent / len(turns), firsts)


def drawn(family: Family, asked: Mapping[int, Asked], point: Point, *, rows: int) -> tuple[dict[int, bytes], int]:
    """Generate these requests from noise; return PNGs by number, and the steps that ran."""
    card = family.card
    engine = Engine({card.name: family}, max_rows=rows, tell_every_s=0.0)
    for number, one in asked.items():
        engine.submit(
            Task(
                str(number), card.name, one.prompt, card.default_size, point.steps, card.default_guidance,
                seed=one.seed, sampler=point.sampler,
                prompted_from=card.prompted_from(point.steps) if point.unprompted else 0,
            )
        )  # fmt: skip
    pictures, steps = {}, 0
    remaining = Remaining(str(point), point.steps * len(asked))
    while not engine.idle:
        for event in engine.step():
            match event:
                case Advanced():
                    remaining.advance()
                case Finished(id=name, pixels=pixels, steps_run=run):
                    pictures[int(name)] = encode_png(pixels)
                    steps += run
                case Left(error=error):
                    raise error
    return pictures, steps


def score(generated: Generated, turns: Sequence[Turn], encoder: Encoder) -> Scored:
    """Judge and embed the images of one point."""
    places = {place: generated.pictures[turn.number] for place, turn in enumerate(turns)}
    prompts, scenes = [turn.second.prompt for turn in turns], [turn.scene for turn in turns]
    verdicts = judge_pictures(places, prompts, scenes, encoder)
    features = features_of(list(places.values()), encoder)
    again = [(place, turn.number) for place, turn in enumerate(turns) if turn.relation is Relation.REROLL]
    firsts = features_of([generated.firsts[number] for _, number in again], encoder)
    rerolled = {number: spread([features[place], first]) for (place, number), first in zip(again, firsts, strict=True)}
    return Scored(generated, [verdicts[place] for place in places], features, rerolled)


def features_of(pictures: Sequence[bytes], encoder: Encoder) -> Features:
    """Return the CLIP embeddings of PNGs, (images, dim)."""
    some = [pictures[start : start + BATCH] for start in range(0, len(pictures), BATCH)]
    found = [vector_from(one.vector) for part in some for one in encoder.images(part)]
    return np.stack(found).astype(np.float64) if found else np.empty((0, 0))


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--count", type=int, default=64, help="prompts")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="numbers of steps T")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--cached", type=int, nargs="*", default=CACHED, help="T of the points with a cache")
    parser.add_argument("--seed", type=int, default=18, help="seed of the scene pairs")
    parser.add_argument("--rows", type=int, default=8, help="images that share a step")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    asked = parser.parse_args(given)
    if asked.count < 4:
        parser.error(f"--count: must be at least 4, so that half of the images have a covariance (got {asked.count})")
    quiet()
    torch.set_num_threads(asked.threads)
    settings = Settings(large=asked.model, sampler=asked.samplers[0], max_rows=asked.rows, log_level="error")
    configure_logging(settings.log_level)  # the planner would print a line per request
    on, card, encoder = machine(), served_card(settings), open_encoder(settings.encoder)
    family = load_family(card, device="cpu")
    turns = stream(held_out_pairs(asked.count, asked.seed))
    points = [Point(sampler, steps) for sampler, steps in product(asked.samplers, asked.steps)]
    few = [steps for steps in asked.steps if card.prompted_from(steps)]
    points += [Point(asked.samplers[0], steps, unprompted=True) for steps in few]
    cached = [Point(asked.samplers[0], steps, cached=True) for steps in asked.cached]
    if card.auto_steps:
        cached.append(Point(asked.samplers[0], AUTO, cached=True))
    generate(family, turns[: asked.rows], Point(asked.samplers[0], 2), rows=asked.rows)  # the first steps are slower
    others = {turn.number: replace(turn.second, seed=turn.second.seed + 1) for turn in turns}
    images, _ = drawn(family, others, points[0], rows=asked.rows)
    reference = features_of([images[turn.number] for turn in turns], encoder)
    scored = {point: score(generate(family, turns, point, rows=asked.rows), turns, encoder) for point in points}
    painter = Painter(settings, asked.threads)
    for point in cached:
        print(f"{point}: {len(turns)} first and {len(turns)} second prompts", flush=True)
        served = asyncio.run(serve_stream(turns, settings, point.steps or None, encoder, painter))
        scored[point] = score(served, turns, encoder)
    compared = against_few_steps(scored, reference)
    figures = {
        "points": figures_of(scored, reference),
        "against_few_steps": compared,
        "equal_quality": equal_quality(compared),
    }
    print(report(figures))
    about = settings_of(asked) | {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash}
    about |= {"reuse_rules": settings.reuse_rules, "alpha": settings.k_table_alpha, "codec": settings.state_codec}
    record("frontier", figures, about | {"auto_steps": card.auto_steps}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
