"""Quality and steps of clips by system, on the session trace of clips (FlexCache §6.2.5, Table 2).

    python -m bench.clip_systems --steps 10      (three hours of two cores; continues after an interruption)
    python -m bench.clip_systems --tiny          (does the command work?)

The all-in-one service serves the first `--count` requests of the trace with each system, whose cache is empty at first.
Two requests are in flight; the next two wait until the cache has their clips, with masks. Processes with a system each
(`--systems`) can share the work; a last one without prints the figures.

- *No cache*: every clip from noise. *Few steps* does so with the mean number of steps that FlexCache ran.
- *NIRVANA* and *FlexCache*: the papers' rules, and their thresholds instead of the model's K tables. FlexCache also has
  pairs, key frames and LRBU. *Measured*: the same with the model's K tables of α = .9 instead, which were measured at
  T = 10 (as in `bench.replays.clip_equal`).
- *Ours*: the defaults, which choose T and starts by the K tables that were measured.

The reference of the Fréchet distance is the same prompts from noise at other seeds, so *no cache* shows the effect of
chance alone. A clip's features are means over its frames, in the space of the CLIP encoder: of the frames, and of how
far adjacent frames are apart. *Copying* is the likeness of a started clip to its source, less that of the clip from
noise to the same source. *Variety* is the mean distance between clips of one prompt, relative to no cache.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.measuring.clip_figures import READ
from bench.measuring.frechet import difference_of_distances, frechet_distance
from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.traced.frontier_figures import bootstrapped, interval
from load.sessions import SHIPPED_CLIPS, Prompt, read_trace
from services.cli.demo.command import settled
from services.cli.demo.video import segmented
from services.cli.embedded import embedded
from services.cli.profiles.judging import SPRITES, Judge, judge_of, vectors_of
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.rows import Pixels
from shared.client import AsyncClient
from shared.domain.types import vector_from
from shared.models import ModelCard, find_card
from shared.models.confidence import ratio_bounds
from shared.models.k_table import FIG_10, named_table, table_file, table_to_json
from shared.models.quality import likeness, spread
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging

Verdict = Mapping[str, Any]
"""What `judged` reads off one clip."""
IN_FLIGHT = 2
OTHER_SEEDS = 1_000_000
"""Added to the seeds of the reference."""
OFF = {"cache": "off"}
PAPER = {"reuse_rules": "paper", "predictor": "always", "k_table_alpha": FIG_10.alpha}
NIRVANA = PAPER | {
    "reuse_bound": "nirvana", "decouple": "off", "segmenter": "", "insert_on_hit": False, "eviction_policy": "lcbfu",
    "state_codec": "fp16",
}  # fmt: skip
FLEXCACHE = PAPER | {
    "reuse_bound": "flexcache", "eviction_policy": "lrbu", "state_codec": "keyframes", "keyframe_least": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class System:
    """One way to serve the trace."""

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each request."""
    like: str = ""
    """T is the mean number of steps that this system ran."""
    fig_10: bool = False
    """NIRVANA's Fig. 10 replaces the model's K tables."""


SYSTEMS = (
    System("reference", "other seeds", fields=OFF),
    System("none", "no cache", fields=OFF),
    System("nirvana", "NIRVANA", NIRVANA, fig_10=True),
    System("flexcache", "FlexCache", FLEXCACHE, fig_10=True),
    System("nirvana-measured", "NIRVANA, measured", NIRVANA),
    System("flexcache-measured", "FlexCache, measured", FLEXCACHE | {"reuse_bound": "auto"}),
    System("ours", "ours", fields={"steps": "auto"}),
    System("few", "few steps, as FlexCache", fields=OFF, like="flexcache"),
)  # fmt: skip


class Work:
    """The clips of one system on disk, and how each came about, so that a run can continue."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._count = folder, count
        self._answers = folder / "answers.jsonl"
        if self._answers.exists():  # a killed run may leave a part of a line
            lines = self._answers.read_text().splitlines(keepends=True)
            self._answers.write_text("".join(line for line in lines if line.endswith("\n")))

    def answers(self) -> dict[int, dict[str, Any]]:
        lines = self._answers.read_text().splitlines() if self._answers.exists() else []
        rows = [json.loads(line) for line in lines]
        return {row["index"]: row for row in rows if row["index"] < self._count}

    def keep(self, answer: Mapping[str, Any], clip: Pixels) -> None:
        np.save(self.folder / f"{answer['index']}.npy", clip)
        with self._answers.open("a") as file:
            file.write(json.dumps(answer) + "\n")

    def clip(self, index: int) -> Pixels:
        found: Pixels = np.load(self.folder / f"{index}.npy")
        return found


def with_fig_10(card: ModelCard, folder: Path) -> str:
    """Return a copy of the model with NIRVANA's Fig. 10, whatever the encoder, instead of its own K tables."""
    shutil.copytree(card.folder, folder, ignore=shutil.ignore_patterns("*k_table_*"), dirs_exist_ok=True)
    table = named_table(FIG_10)
    (folder / table_file(table)).write_text(json.dumps(table_to_json(table)))
    return str(folder)


async def serve(system: System, work: Work, rows: Sequence[Prompt], steps: int, model: str) -> None:
    """Generate the clips that the system lacks; its cache stays in the work folder."""
    done = work.answers()
    missing = [index for index in range(len(rows)) if index not in done]
    if not missing:
        return
    settings = Settings(video=model, data_dir=work.folder / "data", log_level="error", **system.settings)
    remaining = Remaining(f"{system.title}: clips", len(missing))
    async with embedded(settings) as process, AsyncClient(process.address) as client:

        async def one(index: int) -> str:
            row, seeds = rows[index], OTHER_SEEDS * (system.name == "reference")
            asked: dict[str, Any] = {"seed": (index if row.seed is None else row.seed) + seeds, "user": str(row.user)}
            clip = await client.generate_video(
                row.prompt, **{"steps": steps, "frames": row.frames, **asked, **system.fields}
            )
            work.keep(
                {"index": index, "job": clip.job.id, "source": str(clip.plan.source), "start": clip.plan.start_step,
                 "steps_run": clip.steps_run, "sources": [each.entry_id for each in clip.plan.sources]},
                clip.frames,
            )  # fmt: skip
            remaining.advance()
            return clip.job.id if clip.plan.capture_steps else ""

        for at in range(0, len(missing), IN_FLIGHT):
            made = await asyncio.gather(*map(one, missing[at : at + IN_FLIGHT]))
            if system.fields.get("cache") != "off":
                await settled(process, {job for job in made if job}, images=False)
                await segmented(process)


def judged(work: Work, rows: Sequence[Prompt], encoder: Encoder, judge: Judge | None) -> list[dict[str, Any]]:
    """Return CLIP score, smoothness, features and attributes of each clip; they are kept beside the clips."""
    path, found = work.folder / f"judged-{encoder.hash[:8]}.jsonl", list[dict[str, Any]]()
    if path.exists():
        found = [json.loads(line) for line in path.read_text().splitlines()]
    remaining = Remaining(f"{work.folder.name}: judged", max(len(rows) - len(found), 0))
    for index in range(len(found), len(rows)):
        clip = work.clip(index)
        frames = np.stack(vectors_of(encoder, list(clip)))
        mean, text = frames.mean(axis=0), vector_from(encoder.texts([rows[index].prompt])[0].vector)
        found.append(
            {
                "clip": max(float(mean @ text), 0.0),
                "smooth": float((frames[:-1] * frames[1:]).sum(axis=1).mean()),
                "features": [*mean.tolist(), *np.abs(np.diff(frames, axis=0)).mean(axis=0).tolist()],
                "right": judge([clip], rows[index].scene)[0] if judge else {},
            }
        )
        with path.open("a") as file:
            file.write(json.dumps(found[-1]) + "\n")
        remaining.advance()
    return found[: len(rows)]


def copying(work: Work, without: Work) -> dict[str, Any] | None:
    """Return how much liker clips are to the first clip they started from than those from noise; None without hits."""
    answers = work.answers()
    index_of = {answer["job"]: index for index, answer in answers.items()}
    found = []
    for index, answer in answers.items():
        if answer["start"] and (source := index_of.get(answer["sources"][0])) is not None:
            own, other = (likeness(each.clip(index), work.clip(source)) for each in (work, without))
            found.append(own - other)
    return {"started": len(found), "more": bootstrapped(np.array(found))} if found else None


def variety(rows: Sequence[Prompt], verdicts: Sequence[Verdict], answers: Mapping[int, Any]) -> dict[str, float]:
    """Return prompt → mean distance of its clips; clips that repeat a stored one do not count."""
    of = defaultdict(list)
    for index, row in enumerate(rows):
        if answers[index]["source"] != "exact":
            size = len(verdicts[index]["features"]) // 2
            of[row.prompt].append(np.array(verdicts[index]["features"][:size]))
    return {prompt: spread(vectors) for prompt, vectors in of.items() if len(vectors) > 1}


def figures_of(
    works: Mapping[str, Work], verdicts: Mapping[str, Sequence[Verdict]], rows: Sequence[Prompt]
) -> dict[str, Any]:
    """Return each system's figures; all but the reference's own are compared with those of no cache."""
    features = {name: np.array([one["features"] for one in of]) for name, of in verdicts.items()}
    none = verdicts["none"]
    plain = variety(rows, none, works["none"].answers())
    found = {}
    for name, work in works.items():
        answers, own = work.answers(), verdicts[name]
        far = {prompt: value for prompt, value in variety(rows, own, answers).items() if prompt in plain}
        far_of = list(far.values()), [plain[prompt] for prompt in far]
        ratio = (sum(far_of[0]) / sum(far_of[1]), *ratio_bounds(*far_of)) if len(far) > 1 and any(far_of[1]) else None
        clips = [one["clip"] for one in own], [one["clip"] for one in none]
        found[name] = {
            "clips": len(own),
            "steps": fmean(answer["steps_run"] for answer in answers.values()),
            "sources": dict(Counter(answer["source"] for answer in answers.values())),
            "distance": frechet_distance(features[name], features["reference"]),
            "farther": difference_of_distances(features[name], features["none"], features["reference"]),
            "clip_ratio": (sum(clips[0]) / sum(clips[1]), *ratio_bounds(*clips)) if any(clips[1]) else None,
            "smooth": bootstrapped(np.array([one["smooth"] for one in own])),
            "right": {each: bootstrapped(_right(own, each)) for each in (*READ, "all")} if own[0]["right"] else {},
            "more_right": {each: bootstrapped(_right(own, each) - _right(none, each)) for each in (*READ, "all")}
            if own[0]["right"] else {},
            "variety": ratio,
            "copying": copying(work, works["none"]),
        }  # fmt: skip
    return found


def _right(verdicts: Sequence[Verdict], name: str) -> Any:
    names = READ if name == "all" else (name,)
    return np.array([float(all(one["right"][each] for each in names)) for one in verdicts])


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    titles = {one.name: one.title for one in SYSTEMS}
    heads = ["system", "steps", "from noise", "stitched", "Fréchet × 1000", "farther than no cache", "CLIP ratio",
             "CLIP-SIM", *READ, "all five", "variety", "copying"]  # fmt: skip
    rows = [
        [titles[name], one["steps"], share(one["sources"].get("noise", 0) / one["clips"], 1),
         share(one["sources"].get("stitched", 0) / one["clips"], 1), 1000 * one["distance"],
         interval([1000 * value for value in one["farther"]], 2),
         interval(one["clip_ratio"]) if one["clip_ratio"] else "–", interval(one["smooth"]),
         *(interval(one["right"][each]) if one["right"] else "–" for each in (*READ, "all")),
         interval(one["variety"], 2) if one["variety"] else "–",
         interval(one["copying"]["more"]) if one["copying"] else "–"]
        for name, one in found.items() if name != "reference"
    ]  # fmt: skip
    return table(heads, rows)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--trace", type=Path, default=SHIPPED_CLIPS)
    parser.add_argument("--count", type=int, default=512, help="requests of the trace")
    parser.add_argument("--steps", type=int, default=50, help="T of all systems but ours, whose plans choose T")
    parser.add_argument("--model", default="bundled:motion", help="bundled:NAME, or a folder")
    parser.add_argument("--encoder", default="bundled:clip")
    parser.add_argument("--sprites", type=Path, default=SPRITES, help="folder of the trainer's sprites")
    parser.add_argument("--work", type=Path, default=Path("out/bench/clip_systems"), help="folder of the clips")
    parser.add_argument(
        "--systems", nargs="+", choices=[one.name for one in SYSTEMS], help="generate and judge these alone"
    )
    parser.add_argument("--tiny", action="store_true", help="four requests, T = 4")
    asked = parser.parse_args(given)
    if asked.tiny:
        asked.count, asked.steps = 4, 4
    quiet()
    configure_logging("error")
    on, card, encoder = machine(), find_card(asked.model), open_encoder(asked.encoder)
    rows = read_trace(asked.trace)[: asked.count]
    folder = asked.work / f"{asked.steps}-{card.weights_hash[:8]}"
    works = {one.name: Work(folder / one.name, len(rows)) for one in SYSTEMS}
    judge, why_not = judge_of(card.frames.default, None, asked.sprites)
    if why_not:
        print(f"{why_not}: no attribute is judged")
    verdicts = {}
    for system in SYSTEMS:
        if asked.systems and system.name not in asked.systems:
            continue
        steps, work = asked.steps, works[system.name]
        if system.like:
            steps = max(round(fmean(one["steps_run"] for one in works[system.like].answers().values())), 1)
        model = with_fig_10(card, work.folder / "model") if system.fig_10 else asked.model
        asyncio.run(serve(system, work, rows, steps, model))
        verdicts[system.name] = judged(work, rows, encoder, judge)
    if asked.systems:
        return
    figures = figures_of(works, verdicts, rows)
    print(report(figures))
    about = settings_of(asked) | {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash}
    record("clip_systems", {"systems": figures}, about, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
