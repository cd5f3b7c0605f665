"""Reuse of block outputs between steps: time, saving and quality, by size and by what is reused (PatchedServe §5).

    python -m bench.step_reuse --count 64          # 256 images
    python -m bench.step_reuse --count 64 --change 0.1 --most 4 --ways images patches --suffix _quality
    python -m bench.step_reuse --tiny              # few images and steps: does the command work?

A forest is trained for each layout as `afterimage profile --reuse` trains it, here with a fixed N and largest change of
the output. Then the same prompts and seeds run without reuse and with it:

- `images`: layout groups, each image by itself;
- `patches`: layout patches, each patch by itself;
- `nothing`: each layout, the cost of the cache alone: inputs are compared, and all blocks computed;
- `batch`: layout patches, a block is skipped only if every patch of the batch may reuse it (Fig. 15, full image).

Seconds are of processor time: prompts, steps and decoding of batches of one size. The saving is Fig. 15's: patches and
blocks that were not computed, as a share of all. Fig. 4's saving counts outputs that change little from one step to the
next without any reuse. CLIP scores and attributes are those of the images with reuse against those without. Fréchet
distances are from as many images of the same prompts with other seeds, without reuse, in CLIP's image vectors.

Last, diffusers' own caches between steps on a tiny random FLUX: time and difference only. No forest runs there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bench.measuring.frechet import Features, difference_of_distances, frechet_distance
from bench.measuring.judging import JUDGE, open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.measuring.step_caches import CACHES, timed_caches
from services.cli.profiles.judging import judge_of, vectors_of
from services.cli.profiles.measure import Profiler
from services.cli.profiles.pairs import ScenePair
from services.cli.profiles.reuse import attribute_gain, generated, recorded, scores
from services.cli.profiles.reuse_forest import BLOCK, REUSES, Floats, Measured, fit_reuse
from services.gpu_worker.engine.reuse.block_reuse import Policy
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from services.gpu_worker.models.measuring import warm_up
from shared.domain.types import Size
from shared.models import find_card
from shared.models.quality import Pixels
from shared.models.step_reuse import StepReuse
from shared.runtime.progress import Remaining

WAYS = ("nothing", "images", "patches", "batch")
OTHER_SEED = 1_000_000
"""Added to the seeds of the reference."""
FEW = 4
"""Images from which their halves have a Fréchet distance."""


@dataclass(frozen=True)
class AllOrNone:
    """Reuse a block only where every patch of the batch may reuse it."""

    policy: Policy

    def reused(self, block: int, timesteps: Any, in_a_row: Any, changes: Any) -> Any:
        found = self.policy.reused(block, timesteps, in_a_row, changes)
        return found & found.all()


@dataclass(frozen=True)
class Run:
    """Images of one size: their pixels, processor seconds in all, and the share that was reused."""

    images: Sequence[Pixels]
    seconds: float
    reused: float


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--count", type=int, default=64, help="images of each size")
    parser.add_argument("--train", type=int, default=64, help="images that train each forest, over all sizes")
    parser.add_argument("--steps", type=int, default=50, help="T")
    parser.add_argument("--rows", type=int, default=4, help="images that share a step")
    parser.add_argument("--change", type=float, default=0.03, help="largest change of an output that counts as small")
    parser.add_argument("--most", type=int, default=2, help="N: reuses in a row")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="what is reused; without `nothing`, diffusers' caches are left out",
    )
    parser.add_argument("--suffix", default="", help="end of the name of the results")
    parser.add_argument("--encoder", default="bundled:clip")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--tiny", action="store_true", help="one image of each size, two to train, T = 4")
    options = parser.parse_args(given)
    if options.tiny:
        vars(options).update(count=1, train=2, steps=4, rows=2)
    quiet()
    torch.set_num_threads(options.threads)
    figures, on = measure(options)
    report(figures)
    record(f"step_reuse{options.suffix}", figures, settings_of(options), on=on, folder=options.out)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures, and the machine before the run."""
    on, figures = machine(), dict[str, Any]()
    for layout in ("groups", "patches"):
        family = load_family(find_card(options.model), device="cpu", layout=layout)
        assert isinstance(family, PipelineFamily)
        warm_up(family)
        profiler = Profiler(
            family, open_encoder(options.encoder), judge_of(1, JUDGE)[0], [], options.steps, max_rows=options.rows
        )
        with torch.inference_mode():
            figures[layout] = _of_layout(profiler, options, layout)
        if layout == "groups" and "nothing" in options.ways:
            figures["baselines"] = timed_caches(options.steps, options.rows)
    return figures, on


def _of_layout(profiler: Profiler, options: argparse.Namespace, layout: str) -> dict[str, Any]:
    pairs = profiler.pairs(options.train, 0, f"{options.seed}/train")
    rows, changed = recorded(profiler, pairs, options.most, lambda: None)
    found = fit_reuse(rows, changed, options.change, profiler.family.card.weights_hash)
    ways: dict[str, Policy] = {"nothing": replace(found, most=0)}
    ways |= {"images": found} if layout == "groups" else {"patches": found, "batch": AllOrNone(found)}
    ways = {name: policy for name, policy in ways.items() if name in options.ways}
    asked = list(profiler.pairs(options.count, 0, f"{options.seed}/asked"))
    sizes = profiler.family.card.sizes.sizes or (profiler.family.card.default_size,)
    left = Remaining(f"{layout}, runs of one size", len(sizes) * (len(ways) + 2))
    return {
        "limits": found.limits.size,
        "decide_10000_ms": 1000 * decide_s(found),
        "agrees": _agrees(found, rows, changed, options.change),
        "sizes": {str(size): _of_size(profiler, asked, size, ways, options, left) for size in sizes},
    }


def decide_s(found: StepReuse, patches: int = 10_000, repeats: int = 50) -> float:
    """Return the median seconds of one decision about so many patches."""
    draw = np.random.default_rng(0)
    times = draw.uniform(0, 1000, patches)
    in_a_row = draw.integers(0, 4, patches)
    moved = draw.uniform(0, 0.1, patches)
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        found.reused(0, times, in_a_row, moved)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def _agrees(found: StepReuse, rows: Measured, changed: Floats, change: float) -> dict[str, float]:
    """Return the shares of the records that the forest reuses, and that it reuses although the output changed more."""
    voted = np.zeros(len(rows), dtype=bool)
    for block in range(len(found.limits)):
        own = rows[:, BLOCK] == block
        voted[own] = found.reused(block, rows[own, 1], rows[own, REUSES].astype(np.int64), rows[own, 3])
    return {"reused": float(voted.mean()), "wrong": float((voted & (changed > change)).mean())}


def _of_size(
    profiler: Profiler,
    pairs: Sequence[ScenePair],
    size: Size,
    ways: Mapping[str, Policy],
    options: argparse.Namespace,
    left: Remaining,
) -> dict[str, Any]:
    plain = _run(profiler, pairs, size, None)
    others = [replace(pair, after_seed=pair.after_seed + OTHER_SEED) for pair in pairs]
    reference = _features(profiler, _run(profiler, others, size, None).images)
    own = _features(profiler, plain.images)
    left.advance(2)
    _, changed = recorded(profiler, pairs[:4], 1, lambda: None, size)
    before = scores(profiler, pairs, plain.images)
    steps = options.steps * len(pairs)
    figures: dict[str, Any] = {
        "step_ms": 1000 * plain.seconds / steps,
        "small_changes": float((changed <= options.change).mean()),
        "frechet": frechet_distance(own, reference) if len(own) > 1 else None,
        "ways": {},
    }
    for name, policy in ways.items():
        run = _run(profiler, pairs, size, policy)
        left.advance()
        after = scores(profiler, pairs, run.images)
        figures["ways"][name] = {
            "step_ms": 1000 * run.seconds / steps,
            "time_saved": 1 - run.seconds / plain.seconds,
            "reused": run.reused,
            "clip_ratio": fmean(after) / fmean(before) if fmean(before) > 0 else None,
            "attributes": attribute_gain(profiler, pairs, plain.images, run.images),
            "frechet_more": _farther(_features(profiler, run.images), own, reference),
            "pixel_difference": fmean(_difference(*both) for both in zip(plain.images, run.images, strict=True)),
        }
    return figures


def _features(profiler: Profiler, images: Sequence[Pixels]) -> Features:
    return np.array(vectors_of(profiler.encoder, images), dtype=np.float64)


def _farther(one: Features, own: Features, reference: Features) -> tuple[float, float, float] | None:
    """Return how much farther images with reuse are from the reference, with a 95 % interval; None for few images."""
    return difference_of_distances(one, own, reference) if len(one) >= FEW else None


def _run(profiler: Profiler, pairs: Sequence[ScenePair], size: Size, policy: Policy | None) -> Run:
    assert isinstance(profiler.family, PipelineFamily)
    reuse = profiler.family.reuse_blocks(policy)
    seen, reused = reuse.counts.seen, reuse.counts.reused
    begun = time.process_time()
    images = generated(profiler, pairs, lambda: None, size)
    spent = time.process_time() - begun
    profiler.family.reuse_blocks(None)
    return Run(images, spent, (reuse.counts.reused - reused) / max(reuse.counts.seen - seen, 1))


def _difference(one: Pixels, other: Pixels) -> float:
    """Return the mean absolute difference of two images, of 255."""
    return float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())


def report(figures: Mapping[str, Any]) -> None:
    lines = []
    for layout in ("groups", "patches"):
        for size, one in figures[layout]["sizes"].items():
            for name, way in one["ways"].items():
                gain = way["attributes"]
                lines.append(
                    [f"{size}, {name}", one["step_ms"], way["step_ms"], share(way["time_saved"], 1),
                     share(way["reused"], 1), share(one["small_changes"], 1), way["clip_ratio"] or "–",
                     "–" if gain is None else f"{gain:+.3f}", _thousandths([one["frechet"]]),
                     _thousandths(way["frechet_more"]), way["pixel_difference"]]
                )  # fmt: skip
    headings = ["size, reuse of", "ms a step and image", "with reuse", "time saved", "blocks saved", "small changes",
                "CLIP ratio", "attributes", "Fréchet × 1000", "with reuse, more", "difference of 255"]  # fmt: skip
    print(table(headings, lines))
    print(f"\nOne decision about 10,000 patches: {figures['groups']['decide_10000_ms']:.3f} ms\n")
    if "baselines" not in figures:
        return
    print(
        table(
            ["diffusers' cache, tiny FLUX", "time saved", "difference of latents"],
            [[name, share(figures["baselines"][name]["time_saved"], 1), figures["baselines"][name]["difference"]]
             for name in CACHES],
        )
    )  # fmt: skip


def _thousandths(found: Sequence[float | None] | None) -> str:
    """Return a distance × 1000, with its interval if it has one."""
    if not found or found[0] is None:
        return "–"
    first, *interval = (f"{1000 * (one or 0.0):.2f}" for one in found)
    return f"{first} ({' to '.join(interval)})" if interval else first


if __name__ == "__main__":
    main()
