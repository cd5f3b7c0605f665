"""Starts from another image's latent that compute only the region that differs (Chorus' stages): quality and savings.

    python -m bench.regions            (about ten minutes of one core)
    python -m bench.regions --tiny     # four pairs of ten steps: does the command work?

Pairs of prompts differ in their object or in their background. The second image starts from a latent of the first at K.
With a region, cells outside keep the first image's latents after each step up to `--until`; later steps compute every
cell. The region is the segmenter's mask on the first image: of the object, or of the background, grown by `--grow`
cells. `computed` is the share of cells × steps that a run would compute if cells outside cost nothing, 1: from noise.
"""

from __future__ import annotations

import argparse
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
from services.cli.profiles.stitched import parts_of
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromState, Row, Start, Stepped, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from services.segmenter.choice import open_segmenter
from services.segmenter.masks import Grid, packed_masks
from shared.domain.masks import unpack
from shared.models import find_card
from shared.models.quality import Measures, Pixels, Quality, compare, likeness, look
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

KINDS = ("object", "background")
Mask = npt.NDArray[np.bool_]
Latents = dict[int, npt.NDArray[np.float32]]
"""Step → latent after it."""


@dataclass(frozen=True)
class Way:
    """One way to start the second image."""

    name: str
    k: int
    until: int = 0
    """Last step whose result outside the region is replaced; 0: the region is the whole image."""


@dataclass(frozen=True)
class Held:
    """What a run keeps of its source."""

    mask: torch.Tensor
    """(h, w): cells that are computed."""
    latents: Latents
    until: int


class Holding:
    """The family's step, after which some runs keep their source's latents outside their region."""

    def __init__(self, family: PipelineFamily) -> None:
        self.held: dict[str, Held] = {}
        self._step = family.step

    def __call__(self, rows: Sequence[Row]) -> list[Stepped]:
        return [self._kept(row, one) for row, one in zip(rows, self._step(rows), strict=True)]

    def _kept(self, row: Row, one: Stepped) -> Stepped:
        held, step = self.held.get(row.task.id), row.done + 1
        if held is None or step > held.until:
            return one
        return replace(one, latent=torch.where(held.mask, one.latent, torch.from_numpy(held.latents[step])))


def grown(mask: Mask, cells: int) -> Mask:
    """Return the mask, (h, w), with all cells within this many of one of its own, diagonals included."""
    if not cells:
        return mask
    pooled = torch.nn.functional.max_pool2d(torch.from_numpy(mask)[None, None].float(), 2 * cells + 1, 1, cells)
    found: Mask = pooled[0, 0].bool().numpy()
    return found


def computed(way: Way, share: float, steps: int) -> float:
    """Return the cells × steps that a run computes, as a share of those of a run from noise. share: of the region."""
    held = max(way.until - way.k, 0)
    return (held * share + steps - way.k - held) / steps


def run(family: PipelineFamily, tasks: Sequence[Task], rows: int) -> tuple[dict[str, Pixels], dict[str, Latents]]:
    """Return the images and the captured latents by task."""
    engine = Engine({family.card.name: family}, max_rows=rows)
    for task in tasks:
        engine.submit(task)
    images: dict[str, Pixels] = {}
    latents: dict[str, Latents] = {task.id: {} for task in tasks}
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, LatentCaptured):
                latents[event.id][event.step] = np.asarray(event.latent, np.float32).copy()
            elif isinstance(event, Finished):
                images[event.id] = event.pixels
            elif isinstance(event, Left):
                raise event.error
    return images, latents


class Measurement:
    """The images of all pairs, chunk by chunk, and what they measure."""

    def __init__(self, options: argparse.Namespace) -> None:
        card = find_card(options.model)
        family = load_family(card, device="cpu")
        assert isinstance(family, PipelineFamily)
        self._family, self._options, self._holding = family, options, Holding(family)
        setattr(family, "step", self._holding)  # noqa: B010 — the engine runs unchanged around it
        settings = Settings()
        self._segmenter = open_segmenter(settings.segmenter, "cpu")
        self._threshold = settings.segment_threshold
        self._encoder = open_encoder(settings.encoder)
        judge, why = judge_of(1)
        if judge is None:
            raise SystemExit(f"regions: {why}")
        self._judge = judge

    def region(self, pair: ScenePair, source: Pixels) -> Mask | None:
        """Return the cells that differ by the source's image; None where the segmenter finds none."""
        parts = parts_of(pair.before_text)
        if not parts.both:
            return None
        shares = self._segmenter.segment(source[None], [parts.object, parts.background])
        found = packed_masks(shares, Grid.of(self._family.card), self._threshold)
        if not isinstance(found, bytes):
            return None
        of_object, of_background = unpack(found)
        return grown((of_object if pair.kind == "object" else of_background)[0], self._options.grow)

    def chunk(self, pairs: Sequence[ScenePair], ways: Sequence[Way]) -> list[dict[str, Any]]:
        """Return one record for each pair and way, and for the runs from noise."""
        steps = self._options.steps
        firsts = [self._task(pair, "before", capture_steps=tuple(range(1, steps))) for pair in pairs]
        images, latents = run(
            self._family, [*firsts, *(self._task(pair, "noise") for pair in pairs)], self._options.rows
        )
        found, tasks = {}, []
        for pair in pairs:
            name = f"{pair.number}/before"
            region = self.region(pair, images[name])
            if region is None:
                continue
            found[pair.number] = region
            for way in ways:
                task = self._task(pair, way.name, FromState(latents[name][way.k], way.k))
                self._holding.held[task.id] = Held(torch.from_numpy(region), latents[name], way.until)
                tasks.append(task)
        images |= run(self._family, tasks, self._options.rows)[0]
        self._holding.held.clear()
        return [
            self._record(pair, name, images, found[pair.number])
            for pair in pairs
            if pair.number in found
            for name in ("noise", *(way.name for way in ways))
        ]

    def _task(self, pair: ScenePair, name: str, start: Start | None = None, **fields: Any) -> Task:
        card, before = self._family.card, name == "before"
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

    def _record(self, pair: ScenePair, name: str, images: Mapping[str, Pixels], region: Mask) -> dict[str, Any]:
        pixels, source = images[f"{pair.number}/{name}"], images[f"{pair.number}/before"]
        (judged,), (vector,) = self._judge([pixels], pair.after), vectors_of(self._encoder, [pixels])
        text = self._encoder.texts([pair.after_text])[0].vector
        score = max(float(vector @ np.frombuffer(text, np.float32)), 0.0)
        shown = all(judged.get(one, True) for one in changed(pair))
        measures = replace(look(pixels), score=score, shown=shown, likeness=likeness(pixels, source))
        return {
            "pair": pair.number, "kind": pair.kind, "way": name, "measures": measures,
            "all_right": all(judged.values()), "share": float(region.mean()),
        }  # fmt: skip


def figures_of(records: Sequence[Mapping[str, Any]], ways: Sequence[Way], steps: int) -> dict[str, Any]:
    """Return quality against noise, and the cells computed, of each way and kind of change."""
    found: dict[str, Any] = {}
    for kind in (*KINDS, "both"):
        of = [one for one in records if kind in ("both", one["kind"])]
        noise: list[Measures] = [one["measures"] for one in of if one["way"] == "noise"]
        found[kind] = {"pairs": len(noise), "region": fmean(one["share"] for one in of), "ways": {}}
        right = {
            name: fmean(one["all_right"] for one in of if one["way"] == name) for name in {one["way"] for one in of}
        }
        found[kind]["noise_all_right"] = right["noise"]
        for way in ways:
            own = [one for one in of if one["way"] == way.name]
            quality: Quality = compare([one["measures"] for one in own], noise)
            measured = {name: value.value for name in Quality.__dataclass_fields__ if (value := getattr(quality, name))}
            share = fmean(computed(way, one["share"] if way.until else 1.0, steps) for one in own)
            found[kind]["ways"][way.name] = {**measured, "all_right": right[way.name], "computed": share}
    return found


def report(figures: Mapping[str, Any]) -> str:
    names = ("computed", "fidelity", "attributes", "all_right", "contrast", "saturation", "sharpness", "copying")
    rows = [
        [f"{kind} ({of['pairs']})", way, *(f"{one.get(name, float('nan')):.3f}" for name in names)]
        for kind, of in figures.items()
        for way, one in of["ways"].items()
    ]
    return f"\n{table(['change (pairs)', 'start', *names], rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--pairs", type=int, default=32, help="pairs of each kind of change")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--k", type=int, default=15, help="start step of the starts with a region")
    parser.add_argument("--later", type=int, default=25, help="start step of a plain start that saves as much")
    parser.add_argument("--until", type=int, nargs="+", default=[35, 47], help="last steps that keep cells outside")
    parser.add_argument("--grow", type=int, default=2, help="cells by which the region is grown")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seed", default="regions")
    parser.add_argument("--tiny", action="store_true", help="two pairs of each kind, T = 10")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.pairs, options.steps, options.k, options.later, options.until = 2, 10, 3, 5, [7]
    if late := [step for step in (options.k, options.later, *options.until) if not 0 < step < options.steps]:
        parser.error(f"--k, --later and --until must be between 0 and --steps {options.steps} (got {late[0]})")
    quiet()
    torch.set_num_threads(1)
    on, begun = machine(), time.monotonic()
    ways = [Way("plain", options.k), Way("plain, later", options.later)]
    ways += [Way(f"region until {until}", options.k, until) for until in options.until]
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
    found = {"kinds": figures, "unmasked": len(pairs) - len({one["pair"] for one in records})}
    found["seconds"] = round(time.monotonic() - begun, 1)
    record("regions" + ("_tiny" if options.tiny else ""), found, settings_of(options), on=on, folder=options.out)


if __name__ == "__main__":
    main()
