"""`afterimage profile`: measure the quality of starts from other images, and write the similarity → K tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from services.cli.display.help import setting
from services.cli.display.words import made_folder, wide
from services.cli.embedded import settings_from
from services.cli.profiles.k_table_view import k_table_view, nothing_safe
from services.cli.profiles.preparation import prepared
from services.cli.profiles.records import Run, measure_records, of_tables, profile_rows
from services.cli.profiles.report import Section, report_html, report_section
from services.cli.profiles.storing import store_measured
from shared.domain.errors import InvalidRequestError
from shared.models.k_table import PROFILED, KTable, table_file, table_to_json
from shared.models.learned_table import LearnedTable, learned_file, learned_to_json
from shared.models.step_regression import LEAST_MIXES
from shared.runtime.progress import shown

if TYPE_CHECKING:  # torch is imported when a profile runs, not when --help is read
    from services.cli.profiles.measure import Profiler
    from services.retriever.profile import ProfileRow
    from shared.models.state_codecs import CodecChoice
    from shared.runtime.settings import Settings

Optional = typer.Option


def profile(
    model: Annotated[
        str | None, Optional("--model", help="Model to measure: a name of `models list`, a folder, or a hub id.")
    ] = None,
    images_from: Annotated[
        str | None,
        Optional(help="Start from finished images of this model instead of the measured model's own latents."),
    ] = None,
    against: Annotated[
        str | None, Optional(help="Model whose images from noise are the reference. Default: the large one of the two.")
    ] = None,
    encoder: Annotated[str | None, setting("encoder")] = None,
    pairs: Annotated[
        int,
        Optional(
            min=0,
            help="Pairs of prompts to generate, every kind of change equally often; 0: none and no tables, only "
            "--mixes and --reuse.",
        ),
    ] = 400,
    further: Annotated[
        int,
        Optional(min=0, help="Further pairs for the learned bound: the same prompt, another wording, several changes."),
    ] = 0,
    alphas: Annotated[
        str, Optional(help="Shares α of quality that a hit must keep, separated by commas; one table for each.")
    ] = ",".join(map(str, PROFILED)),
    out: Annotated[
        Path, Optional("--out", "-o", help="Folder for rows, tables and plot. Run the command again to resume.")
    ] = Path("out/profile"),
    seed: Annotated[int, Optional(help="Seed of the pairs.")] = 0,
    steps: Annotated[
        str | None,
        Optional(
            help="Denoising steps T, several separated by commas; the first one's tables count. Default: the model's."
        ),
    ] = None,
    reference_steps: Annotated[
        int | None, Optional(min=2, help="T of the reference from noise. Default: the first of --steps.")
    ] = None,
    k: Annotated[
        str | None,
        Optional(
            "--k", help="Start steps K of 50, separated by commas and scaled to each T. Default: the cache's levels."
        ),
    ] = None,
    max_rows: Annotated[int, Optional(min=1, help="Images, or frames of clips, per denoising step.")] = 8,
    fresh_noise: Annotated[float, Optional(min=0, max=1, help="Share of new noise in a reused latent, 0–1.")] = 0.0,
    variety: Annotated[bool, Optional(help="Measure variety too, by further seeds of one pair in eight.")] = True,
    codecs: Annotated[
        bool, Optional("--codecs", help="Also choose the smallest state codec that keeps every bound at each K.")
    ] = False,
    stitched: Annotated[
        bool, Optional("--stitched", help="Start clips from the object of one clip and the background of another.")
    ] = False,
    mixes: Annotated[
        int,
        Optional(
            min=0,
            help=f"Random mixes of sizes to measure, 0 or at least {LEAST_MIXES}, for scheduler=slack and layout=auto.",
        ),
    ] = 0,
    reuse: Annotated[
        int, Optional(min=0, help="Images that train the forest of step_reuse=auto, and as many to check; 0: none.")
    ] = 0,
    segmenter: Annotated[str | None, setting("segmenter")] = None,
    judge: Annotated[Path | None, Optional(help="Folder of the judge. Default: the one that ships.")] = None,
    sprites: Annotated[Path | None, Optional(help="Folder of the trainer's sprites, for the judge of clips.")] = None,
    device: Annotated[str | None, setting("device")] = None,
    store: Annotated[
        bool, Optional(help="Store the tables and the latency in the catalog of the data directory.")
    ] = True,
    data_dir: Annotated[Path | None, Optional(help="Data directory of that catalog.")] = None,
) -> None:
    """Measure at which step K one model may start from another image's latents (NIRVANA §5.3.1, Algorithm 2).

    Generates pairs of prompts that differ in one known way: each second prompt from noise, and from every K of the
    first. Quality is the CLIP score relative to the score from noise. Where the judge knows the changed attribute,
    quality also needs that attribute in the image.
    With --images-from, the start is a finished image of that model at the noise level of K (MoDM §5.2), and the
    similarity is between prompt and image. Runs of the measured model from noise are compared too: where they keep the
    quality of the other model, they may meet deadlines.
    Look and copying are measured on every pair, variety with fresh noise on one pair in eight.
    Writes rows.jsonl, one k_table_<alpha>.json per α (image_k_table_<model>_<alpha>.json for images), quality.json,
    latency.json, quality.png and report.html. Each further T has a folder T<steps>; its reference is the first T.
    From 100 pairs on, writes learned_bound.json too (docs/models/learned-bound.md).

    With --codecs, each K takes the smallest state codec that keeps every bound; --steps 50,5 measures it at two T.
    state_codecs.json names these codecs, for the setting state_codec = auto.

    A model of clips gets pairs of moving scenes. The measures of a clip are means over at most four of its frames.

    With --mixes 300, steps of random mixes of sizes are measured too, for the setting scheduler = slack. Writes
    step_seconds.json (PatchedServe §6.1.2). Where the setting layout is auto, each mix runs in both layouts, and
    layout_costs.json is written too: the worker then takes the faster layout of each batch.

    With --reuse 256, a forest learns which blocks need no computation in a step, for the setting step_reuse = auto.
    Writes step_reuse.json, also beside the weights (PatchedServe §5.1).

    With --stitched, each second prompt starts from two clips' latents, joined by the segmenter's masks (FlexCache
    §4.2). The similarity is the lower one of object and background. Writes pair_k_table_<alpha>.json.

    400 pairs at T = 50 run 168,750 steps: about 16 minutes for the bundled large on two CPU cores, at 5.8 ms a step.

    [bold]Examples[/bold]

      afterimage profile --pairs 400

      afterimage profile --steps 50,5 --k 10,20,30 --out out/profile-few-steps

      afterimage profile --pairs 0 --reuse 256 --out out/reuse

      afterimage profile --model small --images-from large --out out/profile-small-from-large

      afterimage profile --model ./clips --steps 10 --pairs 200 --max-rows 32

      afterimage profile --model ./my-checkpoint --encoder openai/clip-vit-large-patch14 --device cuda --pairs 2000
    """
    wanted = _alphas(alphas)
    if 0 < mixes < LEAST_MIXES:
        raise InvalidRequestError("mixes", f"must be 0 or at least {LEAST_MIXES}", mixes)
    if not pairs and (not (mixes or reuse) or codecs or further):
        raise InvalidRequestError("pairs", "must be at least 1, or 0 with --mixes or --reuse alone", pairs)
    made_folder(out)
    settings = settings_from(
        large=model, encoder=encoder, device=device, data_dir=data_dir, max_rows=max_rows, segmenter=segmenter
    )
    console = wide()
    values = _whole("steps", steps, 2)
    ks = _whole("k", k, 1)
    others = images_from, against, reference_steps
    runs = prepared(settings, values, ks, fresh_noise, (judge, sprites), *others, console)
    if reuse:
        from services.cli.profiles.reuse import check_reuse

        check_reuse(runs[0][0].family.card, settings)
    runs = [(replace(profiler, variety=variety and not stitched), about) for profiler, about in runs]
    if stitched:
        from services.cli.profiles.stitched import stitched_runs

        runs = stitched_runs(runs, settings)
    folders = [out if n == 0 else out / f"T{profiler.steps}" for n, (profiler, _) in enumerate(runs)]
    for folder in folders:
        made_folder(folder)
    measured = [
        Run(profiler, about | {"seed": seed}, folder) for (profiler, about), folder in zip(runs, folders, strict=True)
    ]
    sections, learned = list[Section](), None
    if pairs:
        measure_records(measured, pairs, further, console)
        sections = [_measured(run, pairs, wanted, console) for run in measured]
        learned = None if stitched else _learned(measured, out, console)
        page = report_html(sections, "" if learned is None else report_section(learned.report))
        (out / "report.html").write_text(page, encoding="utf-8")
    latency = None if stitched else _latency(runs[0][0], out)
    mixed = _mixes(runs[0][0], mixes, settings, out, console) if mixes else {}
    if reuse:
        _reuse(runs[0][0], reuse, settings, out, store, console)
    choice = _codecs(runs, pairs, seed, out, console) if codecs and not images_from and not stitched else None
    if store:
        tables = [section.tables for section in sections]
        where = asyncio.run(store_measured(settings, tables, latency, mixed, learned, choice, runs[0][1]))
        console.print(Text(f"Stored for {runs[0][1]['model']} in {where}"))
    console.print(Text(f"{'Tables, rows, plot and report.html' if pairs else 'Measured'}: {out}"))


def _measured(run: Run, pairs: int, alphas: Sequence[float], console: Console) -> Section:
    """Write the tables and the plot of one T, and print the tables."""
    from services.cli.profiles.pairs import FURTHER, grammar_of
    from services.cli.profiles.quality import plot, quality
    from services.retriever.profile import by_kind, noise_cell

    about, folder, steps = run.about, run.folder, run.profiler.steps
    records = of_tables(run.records)
    rows = profile_rows(records)
    from_noise = [record for record in run.records if not record["k"] and record["kind"] not in FURTHER]
    noise = profile_rows(from_noise) if from_noise else []
    tables = {
        alpha: replace(_table(rows, alpha, about, steps), noise=noise_cell(noise, alpha) if noise else None)
        for alpha in alphas
    }
    for table in tables.values():
        text = json.dumps(table_to_json(table), indent=1) + "\n"
        pairs_of = "segmenter" in about
        (folder / table_file(table, steps if run.profiler.further else 0, pairs=pairs_of)).write_text(text)
    measured = quality(records, rows, min(tables), steps)
    (folder / "quality.json").write_text(json.dumps(measured, indent=1) + "\n")
    try:
        plot(measured, folder / "quality.png")
    except ImportError:
        console.print(Text("no plot: matplotlib is not installed (pip install 'afterimage[train]')", style="yellow"))
    for alpha, table in tables.items():
        console.print(k_table_view(alpha, table))
        if not table.levels:
            console.print(Text(nothing_safe(alpha, pairs), style="yellow"))
    kinds = run.profiler.pairs(len(grammar_of(run.profiler.frames).edits), 0, about["seed"])
    return Section(about, by_kind(rows, alpha=max(tables)), tables, folder / "images", kinds)


def _learned(runs: Sequence[Run], out: Path, console: Console) -> LearnedTable | None:
    """Fit and write the learned bound; None where there are too few pairs."""
    from services.cli.profiles.learned import learned_table
    from services.cli.profiles.learning import data_of, similarities_by, similarities_like, too_few

    first = runs[0]
    data = data_of([{run.profiler.steps: run.records for run in runs}], borrow=not first.about.get("unprompted"))
    if few := too_few(data):
        console.print(Text(f"no learned bound: {few}", style="yellow"))
        return None
    similarities = similarities_like(data) if first.profiler.images_of else similarities_by(first.profiler.encoder)
    table = learned_table(data, first.about, first.profiler.reference_steps or first.profiler.steps, similarities)
    text = json.dumps(learned_to_json(table), separators=(",", ":"))
    (out / learned_file(table)).write_text(text + "\n", encoding="utf-8")
    return table


def _latency(profiler: Profiler, out: Path) -> dict[str, Any]:
    """Measure, write and return the latency."""
    from services.cli.profiles.latency import measure_latency

    most = max(profiler.max_rows // profiler.frames, 1)
    latency = measure_latency(profiler.family, [n for n in (1, 2, 4, 8, 16, 32) if n <= most])
    (out / "latency.json").write_text(json.dumps(latency, indent=1) + "\n")
    return latency


def _mixes(profiler: Profiler, count: int, settings: Settings, out: Path, console: Console) -> dict[str, Any]:
    """Measure, write and return what mixes of sizes take, by kind in the catalog."""
    from services.cli.profiles.layouts import profile_layouts
    from services.cli.profiles.mixes import profile_mixes
    from services.gpu_worker.families.pipeline import PipelineFamily
    from shared.models import layout_costs, step_regression

    family = profiler.family
    if not (isinstance(family, PipelineFamily) and family.auto):
        return {step_regression.KIND: profile_mixes(family, count, profiler.max_rows, settings.layout, out, console)}
    costs, regression = profile_layouts(family, count, profiler.max_rows, out, console)
    return {**({layout_costs.KIND: costs} if costs else {}), step_regression.KIND: regression}


def _reuse(profiler: Profiler, count: int, settings: Settings, out: Path, store: bool, console: Console) -> None:
    from services.cli.profiles.reuse import profile_reuse, store_beside

    found = profile_reuse(profiler, count, settings, out, console)
    if store:
        store_beside(found, profiler.family.card, console)


def _codecs(
    runs: Sequence[tuple[Profiler, dict[str, Any]]], pairs: int, seed: int, out: Path, console: Console
) -> CodecChoice:
    """Measure, write and return the codec of each K at each T."""
    from services.cli.profiles.codecs import choose_codecs, codec_profiler
    from services.cli.profiles.pairs import grammar_of, scene_pairs
    from shared.models.state_codecs import FILE, CodecChoice, choice_to_json

    grammar = grammar_of(runs[0][0].frames)
    about, wanted, levels = runs[0][1], list(scene_pairs(pairs, seed, grammar)), []
    path = out / f"codecs-{about['weights_hash'][:12]}-{seed}.jsonl"
    for profiler, _ in runs:
        with shown(console) as bar:
            advance = bar(f"pairs, codecs at T = {profiler.steps}", None)
            levels += choose_codecs(codec_profiler(profiler), wanted, profiler.ks, path, advance)
    choice = CodecChoice(about["model"], about["weights_hash"], tuple(levels))
    (out / FILE).write_text(json.dumps(choice_to_json(choice), indent=1) + "\n")
    for level in levels:
        console.print(Text(f"K = {level.k} of {level.steps}: {level.codec}, {level.bytes:.0f} bytes"))
    return choice


def _whole(name: str, text: str | None, least: int) -> list[int]:
    """Return the whole numbers of an option, each once; none without the option."""
    try:
        values = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        values = [least - 1]
    if any(value < least for value in values):
        raise InvalidRequestError(name, f"must be whole numbers from {least} on, e.g. 50,10", text)
    return list(dict.fromkeys(values))


def _alphas(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 1 for value in values):
        raise InvalidRequestError("alphas", "must be numbers above 0 and up to 1, e.g. 0.9,0.95", text)
    return values


def _table(rows: Sequence[ProfileRow], alpha: float, about: Mapping[str, Any], steps: int) -> KTable:
    from services.retriever.profile import build_table

    names = {name: about[name] for name in ("model", "weights_hash", "encoder_hash")}
    table = build_table(rows, alpha=alpha, steps=steps, **names)
    pictures = {name: about[name] for name in ("images_from", "images_weights_hash") if name in about}
    return replace(table, **pictures)
