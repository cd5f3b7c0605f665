"""Images and states of scene pairs, generated once and stored in a folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.realigned.family import RealignedFamily, Realignment
from services.cli.profiles.pairs import ScenePair
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromState, Pixels, Task
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state

REFERENCE_STEPS = 50
ROWS = 16
"""Images that share a step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One part of the measurement: T, the start steps and the settings."""

    steps: int
    ks: Sequence[int]
    settings: Sequence[str]

    def images(self) -> list[tuple[int, str]]:
        return [(k, setting) for setting in self.settings for k in self.ks]

    def name(self, k: int, setting: str) -> str:
        return f"{self.steps}-{k}-{setting}"


class Store:
    """Images and states of pairs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, pair: ScenePair, name: str) -> Path:
        return self._folder / f"{pair.number:04d}" / f"{name}"

    def has(self, pair: ScenePair, name: str) -> bool:
        return self.path(pair, name).exists()

    def write(self, pair: ScenePair, name: str, data: bytes) -> None:
        path = self.path(pair, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(data)
        part.rename(path)

    def image(self, pair: ScenePair, name: str) -> Pixels:
        return np.asarray(Image.open(io.BytesIO(self.path(pair, f"{name}.png").read_bytes())).convert("RGB"))


def generate(family: RealignedFamily, pairs: Sequence[ScenePair], plan: Plan, store: Store) -> None:
    """Generate what these pairs lack: source, reference and every image of the plan."""
    engine = Engine({family.card.name: family}, max_rows=ROWS, tell_every_s=0.0)
    by_number = {str(pair.number): pair for pair in pairs}

    def start(pair: ScenePair, k: int) -> None:
        state = decode_state(store.path(pair, f"{plan.steps}-{k}.state").read_bytes(), "fp16")
        for setting in plan.settings:
            if not store.has(pair, f"{(name := plan.name(k, setting))}.png"):
                family.realigned[f"{pair.number}/{name}"] = Realignment.read(setting), pair.before_text
                engine.submit(_task(family, pair, name, plan.steps, start=FromState(state, k)))

    for pair in pairs:
        if not store.has(pair, "noise.png"):
            engine.submit(_task(family, pair, "noise", REFERENCE_STEPS))
        if store.has(pair, f"before-{plan.steps}.png") and all(
            store.has(pair, f"{plan.steps}-{k}.state") for k in plan.ks
        ):
            for k in plan.ks:
                start(pair, k)
        else:
            engine.submit(_task(family, pair, f"before-{plan.steps}", plan.steps, capture_steps=tuple(plan.ks)))
    while not engine.idle:
        for event in engine.step():
            match event:
                case LatentCaptured(id=name, step=k, latent=latent):
                    pair = by_number[name.split("/")[0]]
                    store.write(pair, f"{plan.steps}-{k}.state", encode_state(latent, "fp16", ()))
                    start(pair, k)
                case Finished(id=name, pixels=pixels):
                    number, _, image = name.partition("/")
                    store.write(by_number[number], f"{image}.png", encode_png(pixels))
                case Left(error=error):
                    raise error
                case Advanced():
                    pass


def _task(family: RealignedFamily, pair: ScenePair, name: str, steps: int, **more: Any) -> Task:
    before, card = name.startswith("before"), family.card
    return Task(
        f"{pair.number}/{name}", card.name, pair.before_text if before else pair.after_text, card.default_size, steps,
        card.default_guidance, seed=pair.before_seed if before else pair.after_seed, **more,
    )  # fmt: skip
