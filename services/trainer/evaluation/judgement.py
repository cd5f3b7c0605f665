"""Judgement of exported models: one summary, one grid per model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.trainer.clip_pair import judge_pair
from services.trainer.evaluation.drawing import pipeline_draw
from services.trainer.evaluation.speed import measure_speed, seconds_alone
from services.trainer.export import shipped_autoencoder, through
from services.trainer.judging.classifier import load_reader
from services.trainer.judging.confidence import calibrated
from services.trainer.judging.judge import Draw, judge_model, real_pictures
from services.trainer.rendering.renderer import Renderer
from services.trainer.training import runs
from services.trainer.words import Words
from shared.models.card_lookup import SHIPPED
from shared.models.scenes import Scene
from shared.runtime.progress import Bar as ProgressBar
from shared.runtime.progress import shown


def write_judgement(
    names: Sequence[str],
    work: Path,
    models: Path,
    out: Path,
    count: int,
    steps: int,
    guidance: float | None = None,
) -> dict[str, Any]:
    """Judge the models `names` and write `out/summary.json`; results of other models in that file are kept.

    The function needs the exported models and the sprites, and no checkpoint. Missing sprites are fetched into `work`.
    `guidance` None uses the guidance of each model's card.
    """
    with shown() as bar_of:
        return _judgement(names, work, models, out, count, steps, guidance, bar_of)


def _judgement(
    names: Sequence[str],
    work: Path,
    models: Path,
    out: Path,
    count: int,
    steps: int,
    guidance: float | None,
    bar_of: ProgressBar,
) -> dict[str, Any]:
    bar_of("judge: what its bar must be", None)
    renderer, reader = Renderer(work / "sprites"), load_reader(models / "judge")
    passed = through(shipped_autoencoder(models))
    bar = calibrated(renderer, reader, passed, max(64, 2 * count))
    runs.log.info("bar", **asdict(bar))

    def judged(name: str, draw: Draw) -> dict[str, Any]:
        keeping, shown = _keeping(draw)
        found = judge_model(keeping, renderer, reader, bar, count, begin=partial(bar_of, f"judge: pictures of {name}"))
        runs.save_grid(shown, 8, out / f"{name}.png", scale=2)
        return found

    path = out / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    summary["bar"] = asdict(bar)
    for name in names:
        if name == "clip":
            summary[name] = _pair(models / name, renderer)
        elif name in ("real", "round-trip"):
            draw = real_pictures(renderer, passed if name == "round-trip" else None)
            summary[name] = {**judged(name, draw), "seconds_per_picture": seconds_alone(draw)}
        else:
            scale = SHIPPED[name].default_guidance if guidance is None else guidance
            found = judged(name, pipeline_draw(models / name, steps, scale))
            summary[name] = {**found, "steps": steps, "guidance": scale}
        runs.log.info("judged", name=name, **{k: v for k, v in summary[name].items() if isinstance(v, float)})
        _write(path, summary)
    bar_of("judge: speed", None)
    drawn = {name: (models / name, SHIPPED[name].default_guidance) for name in names if name in SHIPPED}
    for name, found in measure_speed(drawn, steps).items():
        summary[name] |= found
    if {"large", "small"} <= drawn.keys():
        of = summary["large"]["step_seconds"]
        summary["small"]["step_of_large"] = {rows: s / of[rows] for rows, s in summary["small"]["step_seconds"].items()}
    _write(path, summary)
    return summary


def _write(path: Path, summary: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n")


def _keeping(draw: Draw) -> tuple[Draw, list[npt.NDArray[np.uint8]]]:
    shown: list[npt.NDArray[np.uint8]] = []
    sizes: set[tuple[int, int]] = set()

    def keep(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], float]:
        pictures, took = draw(scenes, size)
        if size not in sizes:
            sizes.add(size)
            shown.extend(pictures[:16])
        return pictures, took

    return keep, shown


def _pair(folder: Path, renderer: Renderer) -> dict[str, float]:
    import torch
    from transformers import CLIPModel, CLIPTokenizer

    model = CLIPModel.from_pretrained(folder, torch_dtype=torch.float32, use_safetensors=True)
    return judge_pair(model, Words(CLIPTokenizer.from_pretrained(folder)), renderer)
