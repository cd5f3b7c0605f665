"""Milliseconds of a step by the share of blocks that are not computed (PatchedServe §5, Fig. 15), and its memory.

    python -m bench.gpu.reuse
    python -m bench.gpu.reuse --tiny        # tiny models and sizes, on any machine: a check of the script

SDXL (groups and patches) and SD 3 Medium (groups and packed) with their true shapes and random weights, as in
bench.gpu.layouts. For each share, a random choice of patches, or of whole images, takes the last output of each block:
what a forest of step_reuse=auto or the held patches of regions=on save, whatever they choose. *reuse 0* compares and
keeps inputs, as with a forest that reuses nothing; *off* is without reuse. Each round runs all arms in random order,
with the same draws of patches, and times the steps after the first. Without a CUDA device only --tiny runs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.gpu.layouts import MODELS, peaks, tiny_family, true_family
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table

if TYPE_CHECKING:
    from services.gpu_worker.engine.patches.auto_layout import Choice
    from services.gpu_worker.families.pipeline import PipelineFamily
    from shared.domain.types import Size

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
OFF = "off"


@dataclass
class RandomShare:
    """A policy that reuses a share of the patches, or of the whole images, of each block."""

    share: float
    draw: np.random.Generator

    def reused(self, block: int, timesteps: Any, in_a_row: Any, changes: Any) -> np.ndarray:
        return self.draw.random(len(in_a_row)) < self.share


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="models to measure")
    parser.add_argument("--batches", type=int, nargs="+", default=[3, 12], help="requests over three sizes")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES), help="shares that are not computed")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of an arm in each round, after one more")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each arm, in random order")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on the CPU if there is no GPU")
    asked = parser.parse_args(given)
    quiet()
    import torch

    if not torch.cuda.is_available() and not asked.tiny:
        raise SystemExit("bench.gpu.reuse: no CUDA device here: nothing was measured (--tiny checks the script)")
    on, device = machine(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures: dict[str, dict[str, Any]] = {}
    for name in asked.models:
        family, sizes = (tiny_family if asked.tiny else true_family)(name, device)
        with torch.inference_mode():
            found = [measured(family, sizes, count, asked) for count in asked.batches]
        figures[name] = {"dtype": family.card.dtype, "sizes": [str(size) for size in sizes], "batches": found}
        for batch in found:
            title = [f"{name}, {batch['requests']} requests", "not computed", "ms of a step", "÷ off", "peak, GiB"]
            print(table(title, [_row(arm, one) for arm, one in batch["arms"].items()]), flush=True)
        del family
        if device.type == "cuda":
            torch.cuda.empty_cache()
    record("gpu_reuse", figures, settings_of(asked) | {"device": str(device)}, on=on, folder=asked.out)


def measured(family: PipelineFamily, sizes: Sequence[Size], requests: int, asked: Any) -> dict[str, Any]:
    """Return the figures of each arm, a layout and a share, for a batch of `requests` over these sizes."""
    from bench.measuring.layout_arms import GROUPS, MIXED, equal_shares, tasks_of

    tasks, draw = tasks_of(family, equal_shares(sizes, requests)), random.Random(0)
    layouts = {"groups": GROUPS, "patches" if family.denoiser_name == "unet" else "packed": MIXED}
    arms = [(layout, share) for layout in layouts for share in (None, *asked.shares)]
    runs: dict[tuple[str, float | None], list[dict[str, Any]]] = {arm: [] for arm in arms}
    for _ in range(asked.rounds):
        for layout, share in draw.sample(arms, len(arms)):
            runs[layout, share].append(_run(family, tasks, layouts[layout], share, asked.steps))
    family.reuse_blocks(None)
    found: dict[str, dict[str, Any]] = {}
    for layout, share in arms:
        seconds = [each for one in runs[layout, share] for each in one["seconds"]]
        last = runs[layout, share][-1]
        figures = {"ms": 1000 * median(seconds), "reused": last["reused"], "peak_bytes": last["peak_bytes"]}
        found[f"{layout}, {OFF if share is None else f'reuse {share:g}'}"] = figures | {"all_s": seconds}
    for name, one in found.items():
        one["of_off"] = one["ms"] / found[f"{name.partition(',')[0]}, {OFF}"]["ms"]
    return {"requests": requests, "arms": found}


def _run(
    family: PipelineFamily, tasks: Sequence[Any], layout: Choice, share: float | None, steps: int
) -> dict[str, Any]:
    """Run new rows of these tasks for one step and `steps` more; return the seconds of each but the first, the share of
    blocks and patches that were not computed in them, and the peak bytes of all."""
    from bench.measuring.layout_arms import waited
    from services.gpu_worker.engine.row_start import make_row

    assert family.auto is not None, "load the family with layout=auto"
    family.auto.choice = layout
    family.reuse_blocks(None if share is None else RandomShare(share, np.random.default_rng(0)))
    rows, seconds = [make_row(family, task) for task in tasks], list[float]()
    with peaks(family.device) as peak_bytes:
        for _ in range(steps + 1):
            begun = time.perf_counter()
            stepped = family.step(rows)
            waited(family.device)
            seconds.append(time.perf_counter() - begun)
            for row, one in zip(rows, stepped, strict=True):
                row.latent, row.previous, row.done = one.latent, None, row.done + 1
    reused = sum(row.skipped for row in rows) / len(rows) / steps
    return {"seconds": seconds[1:], "reused": reused, "peak_bytes": peak_bytes[0]}


def _row(arm: str, one: dict[str, Any]) -> list[Any]:
    gib = one["peak_bytes"] / 2**30
    return [arm, f"{one['reused']:.0%}", f"{one['ms']:.1f}", f"{one['of_off']:.2f}", f"{gib:.1f}" if gib else "–"]


if __name__ == "__main__":
    main()
