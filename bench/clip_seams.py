"""Seam of a continued clip: the difference of the two frames where it goes on, against differences inside the clips.

    python -m bench.clip_seams --video motion --clips 4

Each source clip is continued once per way with its own prompt and the next seed: with held frames alone (strength 1),
and with new frames that also start from the last one (strength below 1). Differences are root mean squares of pixels
from 0 to 1 between adjacent frames. A contact sheet shows each source with its continuations below one another.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.measuring.recording import machine, record, table
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, Left
from services.gpu_worker.engine.rows import FromNoise, FromPicture, Pixels, Task
from services.gpu_worker.families import load_family
from shared.domain.plan_rules import steps_at
from shared.models.card_lookup import find_card
from shared.models.scenes.motion import clip_caption, random_moving_scene

FIRST = "a red fox runs to the right in the snow"
STRENGTHS = (1.0, 0.8, 0.6)


def generated(engine: Engine, tasks: Sequence[Task]) -> list[Pixels]:
    """Run the tasks; return their clips in order."""
    clips: dict[str, Pixels] = {}
    for task in tasks:
        engine.submit(task)
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Left):
                raise event.error
            if isinstance(event, Finished):
                clips[event.id] = event.pixels
    return [clips[task.id] for task in tasks]


def differences(clip: Pixels) -> list[float]:
    """Return the root mean square of each two adjacent frames' difference, pixels from 0 to 1."""
    values = clip.astype(np.float32) / 255
    return [float(np.sqrt(np.square(after - before).mean())) for before, after in pairwise(values)]


def sheet(rows: Sequence[Pixels], path: Path) -> None:
    """Write clips below one another, each as its frames from left to right."""
    width = max(len(clip) for clip in rows)
    lines = [np.pad(clip, ((0, width - len(clip)), (0, 2), (0, 2), (0, 0))) for clip in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate([np.concatenate(list(line), axis=1) for line in lines])).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--video", default="motion", help="model of clips: a name or a folder")
    parser.add_argument("--clips", type=int, default=4, help="source clips")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sheet", type=Path, default=Path("out/clip-seams.png"))
    given = parser.parse_args()
    on, card = machine(), find_card(given.video)
    torch.set_num_threads(1)
    engine = Engine({card.name: load_family(card)}, max_rows=card.frames.default)
    rng, frames = random.Random(7), card.frames.default
    prompts = [FIRST, *(clip_caption(random_moving_scene(rng)) for _ in range(given.clips - 1))]
    plain: dict[str, Any] = {
        "model": card.name, "size": card.default_size, "frames": frames, "steps": given.steps,
        "guidance": card.default_guidance,
    }  # fmt: skip
    sources = generated(
        engine, [Task(id=f"source {at}", prompt=prompt, seed=7 + at, **plain) for at, prompt in enumerate(prompts)]
    )
    held = card.frames.held(frames, frames)
    rows, shown = [], []
    inside = [fmean(differences(clip)) for clip in sources]
    for strength in STRENGTHS:
        start = given.steps - steps_at(strength, given.steps)
        tasks = [
            Task(
                id=f"{strength} {at}", prompt=prompts[at], seed=8 + at, held=clip[-held:],
                start=FromPicture(clip[-1], start) if start else FromNoise(), **plain,
            )
            for at, clip in enumerate(sources)
        ]  # fmt: skip
        whole = [
            np.concatenate([source, clip[held:]])
            for source, clip in zip(sources, generated(engine, tasks), strict=True)
        ]
        found = [differences(clip) for clip in whole]
        shown.append(whole)
        rows.append(
            {
                "strength": strength,
                "seam": fmean(one[frames - 1] for one in found),
                "seam_most": max(one[frames - 1] for one in found),
                "inside_source": fmean(inside),
                "inside_new": fmean(fmean(one[frames:]) for one in found),
            }
        )
    sheet([clip for clips in zip(*shown, strict=True) for clip in clips], given.sheet)
    print(f"n = {len(prompts)} clips of {frames} frames, {held} held, T = {given.steps}; sheet: {given.sheet}")
    print(table(list(rows[0]), [[f"{value:.3f}" for value in row.values()] for row in rows]))
    settings = {"video": card.name, "weights_hash": card.weights_hash, "clips": len(prompts), "steps": given.steps}
    record("clip_seams", {"held": held, "rows": rows, "prompts": prompts}, settings, on=on)


if __name__ == "__main__":
    main()
