"""Starts from another image's latent that compute only the patches that change (Chorus' stages): quality and savings.

    python -m bench.regions            (about fifteen minutes of one core)
    python -m bench.regions --tiny     # four pairs of twenty steps: does the command work?

Pairs of prompts differ in their object or in their background. The second image starts from a latent of the first at
`--k`: plainly; with a region, as the setting `regions` does it; and plainly at `--later`. `computed` counts the blocks
and patches that ran, as a share of those of a run from noise. `seconds` is processor time for an image: a start with a
region cuts images into patches of `--patch-px`, the others run whole.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from services.cli.profiles.judging import judge_of, vectors_of
from services.cli.profiles.pairs import ScenePair, changed, scene_pairs
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromState, Pixels, Region, Start, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.regions import region_until
from shared.models import ModelCard, find_card
from shared.models.quality import Quality, compare, likeness, look
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

KINDS = ("object", "background")
Latents = dict[str, npt.NDArray[np.float32]]
"""Task → the latent that it captured, under `id@step`."""


@dataclass(frozen=True)
class Way:
    """One way to start the second image."""

    name: str
    k: int
    region: bool = False
    cut: bool = False
    """Run on patches although no region needs them."""


@dataclass(frozen=True)
class Ran:
    """Results of a list of tasks."""

    images: dict[str, Pixels]
    latents: Latents
    skipped: dict[str, float]
    """Task → share of its steps' blocks that did not run."""
    cpu_s: float


def run(family: PipelineFamily, tasks: Sequence[Task], rows: int) -> Ran:
    """Run the tasks, `rows` at a time."""
    engine = Engine({family.card.name: family}, max_rows=rows)
    for task in tasks:
        engine.submit(task)
    images, latents, skipped, begun = dict[str, Pixels](), Latents(), dict[str, float](), time.process_time()
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, LatentCaptured):
                latents[f"{event.id}@{event.step}"] = np.asarray(event.latent, np.float32).copy()
            elif isinstance(event, Finished):
                images[event.id], skipped[event.id] = event.pixels, event.skipped
            elif isinstance(event, Left):
                raise event.error
    return Ran(images, latents, skipped, time.process_time() - begun)


class Measurement:
    """The images of all pairs, chunk by chunk, and what they measure."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._whole = self._loaded(find_card(options.model))
        self._cut = self._loaded(replace(find_card(options.model), regions=True), options.patch_px)
        self._options = options
        self._encoder = open_encoder(Settings().encoder)
        judge, why = judge_of(1)
        if judge is None:
            raise SystemExit(f"regions: {why}")
        self._judge = judge

    def _loaded(self, card: ModelCard, patch_px: int = 0) -> PipelineFamily:
        layout = "patches" if patch_px else "groups"
        family = load_family(card, device="cpu", layout=layout, patch_px=patch_px)
        assert isinstance(family, PipelineFamily)
        return family

    def chunk(self, pairs: Sequence[ScenePair], ways: Sequence[Way]) -> list[dict[str, Any]]:
        """Return one record for each pair and way, and for the runs from noise."""
        options, steps = self._options, sorted({way.k for way in ways})
        firsts = run(
            self._whole, [self._task(pair, "before", capture_steps=tuple(steps)) for pair in pairs], options.rows
        )
        ran = {"noise": run(self._whole, [self._task(pair, "noise") for pair in pairs], options.rows)}
        for way in ways:
            family = self._cut if way.region or way.cut else self._whole
            assert self._cut._patched is not None
            self._cut._patched.cut_from = 0 if way.cut else math.inf
            ran[way.name] = run(family, [self._started(pair, way, firsts) for pair in pairs], options.rows)
        return [
            self._record(pair, name, of, firsts.images[f"{pair.number}/before"], len(pairs))
            for pair in pairs
            for name, of in ran.items()
        ]

    def _started(self, pair: ScenePair, way: Way, firsts: Ran) -> Task:
        source, steps = f"{pair.number}/before", self._options.steps
        until = region_until(way.k, steps) if way.region else 0
        region = Region(firsts.images[source], until) if until else None
        return self._task(pair, way.name, FromState(firsts.latents[f"{source}@{way.k}"], way.k, region=region))

    def _task(self, pair: ScenePair, name: str, start: Start | None = None, **fields: Any) -> Task:
        card, before = self._whole.card, name == "before"
        task = Task(
            id=f"{pair.number}/{name}",
            model=card.name,
            prompt=pair.before_text if before else pair.after_text,
            size=card.default_size,
            steps=self._options.steps,
            guidance=card.default_guidance,
            seed=pair.before_seed if before else pair.after_seed,
            **fields,
        )
        return task if start is None else replace(task, start=start)

    def _record(self, pair: ScenePair, name: str, ran: Ran, source: Pixels, images: int) -> dict[str, Any]:
        task = f"{pair.number}/{name}"
        pixels = ran.images[task]
        (judged,), (vector,) = self._judge([pixels], pair.after), vectors_of(self._encoder, [pixels])
        text = self._encoder.texts([pair.after_text])[0].vector
        score = max(float(vector @ np.frombuffer(text, np.float32)), 0.0)
        shown = all(judged.get(one, True) for one in changed(pair))
        measures = replace(look(pixels), score=score, shown=shown, likeness=likeness(pixels, source))
        return {
            "pair": pair.number, "kind": pair.kind, "way": name, "measures": measures,
            "all_right": all(judged.values()), "skipped": ran.skipped[task], "seconds": ran.cpu_s / images,
        }  # fmt: skip


def figures_of(records: Sequence[Mapping[str, Any]], ways: Sequence[Way], steps: int) -> dict[str, Any]:
    """Return quality against noise, blocks computed and processor time, of each way and kind of change."""
    found: dict[str, Any] = {}
    for kind in (*KINDS, "both"):
        of = [one for one in records if kind in ("both", one["kind"])]
        noise = [one for one in of if one["way"] == "noise"]
        found[kind] = {"pairs": len(noise), "noise": _costs(noise, 0, steps), "ways": {}}
        for way in ways:
            own = [one for one in of if one["way"] == way.name]
            quality: Quality = compare([one["measures"] for one in own], [one["measures"] for one in noise])
            measured = {name: value.value for name in Quality.__dataclass_fields__ if (value := getattr(quality, name))}
            found[kind]["ways"][way.name] = {**measured, **_costs(own, way.k, steps)}
    return found


def _costs(records: Sequence[Mapping[str, Any]], k: int, steps: int) -> dict[str, float]:
    """Return means over images: attributes right, the share of a run from noise that was computed, processor time."""
    return {
        "all_right": fmean(one["all_right"] for one in records),
        "computed": fmean((steps - k) / steps * (1 - one["skipped"]) for one in records),
        "seconds": fmean(one["seconds"] for one in records),
    }


def report(figures: Mapping[str, Any]) -> str:
    names = ("computed", "seconds", "fidelity", "attributes", "all_right", "contrast", "saturation", "sharpness",
             "copying")  # fmt: skip
    rows = [
        [f"{kind} ({of['pairs']})", way, *(f"{one.get(name, float('nan')):.3f}" for name in names)]
        for kind, of in figures.items()
        for way, one in {"noise": of["noise"], **of["ways"]}.items()
    ]
    return f"\n{table(['change (pairs)', 'start', *names], rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--pairs", type=int, default=32, help="pairs of each kind of change")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--k", type=int, default=15, help="start step of the plain start and of the region")
    parser.add_argument("--later", type=int, default=25, help="start step of another plain start, which computes less")
    parser.add_argument("--patch-px", type=int, default=16, help="side of a patch, as the setting patch_px")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seed", default="regions")
    parser.add_argument("--tiny", action="store_true", help="two pairs of each kind, T = 20")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.pairs, options.steps, options.k, options.later = 2, 20, 5, 10
    if late := [step for step in (options.k, options.later) if not 0 < step < options.steps]:
        parser.error(f"--k and --later must be between 0 and --steps {options.steps} (got {late[0]})")
    quiet()
    torch.set_num_threads(1)
    on, begun = machine(), time.monotonic()
    ways = [
        Way("plain", options.k),
        Way("plain, on patches", options.k, cut=True),
        Way("region", options.k, region=True),
        Way("plain, later", options.later),
    ]
    measurement, records = Measurement(options), list[dict[str, Any]]()
    every = [pair for pair in scene_pairs(8 * options.pairs, options.seed) if pair.kind in KINDS]
    pairs = [pair for kind in KINDS for pair in [one for one in every if one.kind == kind][: options.pairs]]
    if len(pairs) < len(KINDS) * options.pairs:
        print(f"{len(pairs)} of {len(KINDS) * options.pairs} pairs: the seed draws no more of these kinds")
    progress = Remaining("pairs", len(pairs))
    for at in range(0, len(pairs), options.rows):
        some = pairs[at : at + options.rows]
        records += measurement.chunk(some, ways)
        for _ in some:
            progress.advance()
    figures = figures_of(records, ways, options.steps)
    print(report(figures))
    found: dict[str, Any] = {"kinds": figures}
    found["seconds"] = round(time.monotonic() - begun, 1)
    record("regions" + ("_tiny" if options.tiny else ""), found, settings_of(options), on=on, folder=options.out)


if __name__ == "__main__":
    main()
