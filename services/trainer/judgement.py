"""Writes the judgement of exported models: one summary, one grid per model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderTiny

from services.trainer import runs
from services.trainer.clip_pair import judge_pair
from services.trainer.drawing import pipeline_draw
from services.trainer.judge import Draw, judge_model, real_pictures
from services.trainer.judge_net import Judge, load_judge
from services.trainer.renderer import Renderer
from services.trainer.speed import measure_speed
from services.trainer.words import Words
from shared.models.card import SHIPPED
from shared.scenes import Scene


def write_judgement(
    names: Sequence[str],
    work: Path,
    models: Path,
    out: Path,
    count: int,
    steps: int,
    guidance: float | None = None,
) -> dict[str, Any]:
    """Judge each of `names` and write `out/summary.json`, keeping what it says of others.

    Needs the exported models and the sprites, which are fetched into `work` when they are not there; no checkpoint.
    `guidance` None: what each model's card says.
    """
    renderer, judge = Renderer(work / "sprites"), load_judge(models / "judge")
    path = out / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if name == "clip":
            summary[name] = _pair(models / name, renderer)
        elif name in ("real", "round-trip"):
            passed = _through_the_autoencoder(models) if name == "round-trip" else None
            summary[name] = _judged(name, real_pictures(renderer, passed), renderer, judge, count, out)
        else:
            scale = SHIPPED[name].default_guidance if guidance is None else guidance
            found = _judged(name, pipeline_draw(models / name, steps, scale), renderer, judge, count, out)
            summary[name] = {**found, "steps": steps, "guidance": scale}
        runs.log.info("judged", name=name, **{k: v for k, v in summary[name].items() if isinstance(v, float)})
        _write(path, summary)
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


def _judged(name: str, draw: Draw, renderer: Renderer, judge: Judge, count: int, out: Path) -> dict[str, Any]:
    keeping, shown = _keeping(draw)
    found = judge_model(keeping, renderer, judge, count)
    runs.save_grid(shown, 8, out / f"{name}.png", scale=2)
    return found


def _through_the_autoencoder(models: Path) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]:
    folder = min(models.glob("*/vae"))  # one autoencoder, which every model ships a copy of
    vae = AutoencoderTiny.from_pretrained(folder, torch_dtype=torch.float32).eval()

    @torch.no_grad()
    def passed(pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return runs.to_pictures(vae.decode(vae.encode(runs.to_tensor(pictures)).latents).sample)

    return passed


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
    from transformers import CLIPModel, CLIPTokenizer

    model = CLIPModel.from_pretrained(folder, torch_dtype=torch.float32)
    return judge_pair(model, Words(CLIPTokenizer.from_pretrained(folder)), renderer)
