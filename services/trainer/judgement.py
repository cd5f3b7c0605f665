"""Writes the judgement of exported models: one summary, one grid per model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.trainer import runs
from services.trainer.clip_pair import judge_pair
from services.trainer.drawing import pipeline_draw
from services.trainer.export import trained_autoencoder
from services.trainer.judge import Draw, judge_model, real_pictures
from services.trainer.judge_net import load_judge
from services.trainer.renderer import Renderer
from services.trainer.words import Words
from shared.scenes import Scene


def write_judgement(
    names: Sequence[str], work: Path, models: Path, out: Path, count: int, steps: int, guidance: float
) -> dict[str, Any]:
    """Judge each of `names` and write `out/summary.json`, keeping what it says of others."""
    renderer, judge = Renderer(work / "sprites"), load_judge(models / "judge")
    path = out / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if name == "clip":
            summary[name] = _pair(models / name, renderer)
        else:
            draw, shown = _keeping(_drawing(name, work, models, renderer, steps, guidance))
            summary[name] = {**judge_model(draw, renderer, judge, count), "steps": steps, "guidance": guidance}
            runs.save_grid(shown, 8, out / f"{name}.png", scale=2)
        runs.log.info("judged", name=name, **{k: v for k, v in summary[name].items() if isinstance(v, float)})
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _drawing(name: str, work: Path, models: Path, renderer: Renderer, steps: int, guidance: float) -> Draw:
    if name == "real":
        return real_pictures(renderer)
    if name == "round-trip":
        vae = trained_autoencoder(work)

        @torch.no_grad()
        def passed(pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
            return runs.to_pictures(vae.decode(vae.encode(runs.to_tensor(pictures)).latents).sample)

        return real_pictures(renderer, passed)
    return pipeline_draw(models / name, steps, guidance)


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
