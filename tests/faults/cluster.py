"""The cluster that a fault run breaks: how large, how slow, what is asked of it and what is killed."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from scripts.stack.servers import Server
from scripts.stack.stack import Stack, variable
from shared.models.k_table import FIG_10, named_table, table_file, table_to_json
from tests import tiny, tiny_clips
from tests.faults.slow_worker import PAUSE
from tests.tiny_segmenters import tiny_clipseg

INVARIANT = 4
"""Rows of every forward pass, padding included; makes images bit-identical (docs/architecture.md, Equality)."""
STEPS = 50
SEGMENTER = "segmenter"


@dataclass(frozen=True)
class Form:
    """How much a fault run does."""

    jobs: int
    clients: int
    step_ms: float
    """Added to every step of the tiny model, without taking the processor."""
    kills_until: float
    """Share of the jobs answered when services are no longer killed and servers are restarted."""
    servers: int
    """How many of the four servers are restarted, one after the other."""
    asked_again: int
    """Keys asked for once more at the end."""
    redrawers: int
    limit_s: float
    """Of the load; what is not answered by then is lost."""
    clips: int = 0
    """Number of clips among the jobs."""
    clip_steps: int = 20
    clocks_s: float = 0.0
    """Each service's clock is so far ahead, or behind."""
    lane_order: str = "arrival"
    """Of the workers; with `urgent` they join and set aside by slack too, and have fewer rows than there are calls."""
    settle_s: float = 120.0
    least_resumes: int = 1
    kill_s: tuple[float, float] = (2.0, 5.0)
    """Between two kills of services …"""
    most_kills: int = 10_000
    most_away: int = 4
    """… of which no more are starting at a time: on a busy machine a start takes longer than the next kill."""
    replicas: Mapping[str, int] = field(default_factory=lambda: {"gateway": 2, "retriever": 2, "gpu_worker": 3})
    weights: Mapping[str, float] = field(
        default_factory=lambda: {
            "gpu_worker": 6.0,
            "gateway": 3.0,
            "retriever": 2.0,
            "cache_maintainer": 2.0,
            "match_predictor": 1.5,
            "embedder": 1.5,
            "global_monitor": 1.5,
            "segmenter": 2.0,
            "text_extractor": 1.5,
        }
    )
    """How often each kind is killed: a worker's death resumes jobs, an embedder's costs seconds of processor time."""

    def settings(self) -> dict[str, Any]:
        return asdict(self)


SHORT = Form(
    jobs=40, clients=10, step_ms=20.0, kills_until=0.6, servers=1, asked_again=10, redrawers=1, limit_s=150.0,
    most_kills=4, most_away=1, clips=4,
    replicas={"gateway": 2, "gpu_worker": 2},
    weights={"gpu_worker": 2.0, "gateway": 2.0, "retriever": 1.0, "global_monitor": 1.0,
             "cache_maintainer": 1.0, "segmenter": 1.0, "text_extractor": 1.0},
)  # fmt: skip


URGENT_ROWS = 3
"""Rows of a worker where its lane is ordered by urgency: jobs must wait for the order to matter."""


def whole(jobs: int, clips: int = 0, kills: float = 1.0, slow: float = 1.0) -> Form:
    """The full form; it counts with 1,000 jobs, of which fifty or more must have gone on from a step > 0.

    clips: the number of clips among the jobs. kills: so many times as often; slow: each step takes so many times as
    long.
    """
    return Form(
        jobs=jobs, clients=16, step_ms=100.0 * slow, kills_until=0.8, servers=4, asked_again=jobs, redrawers=2,
        limit_s=1500.0 * max(kills, slow) + 5.0 * clips, least_resumes=50 if jobs >= 1000 else 1,
        kill_s=(2.0 / kills, 5.0 / kills), clips=clips,
    )  # fmt: skip


class SlowStack(Stack):
    """Each step of its workers takes so many milliseconds longer, without taking the processor."""

    step_ms = 0.0

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {PAUSE: str(self.step_ms)}

    def command(self, name: str) -> list[str]:
        if name.startswith("gpu_worker-"):
            return [sys.executable, "-m", "tests.faults.slow_worker"]
        return super().command(name)


class FaultStack(SlowStack):
    """A stack of tiny random models whose workers take their time, and that recovers soon.

    With clips, the last worker has no video model, a long clip exceeds half a message, and finished clips get masks: a
    pair of them saves more steps than a clip alone (`build_models`).
    """

    def __init__(self, folder: Path, models: Path, form: Form, **changes: Any) -> None:
        settings = {
            "large": str(models / "large"),
            "encoder": str(models / "clip"),
            "torch_threads": 1,
            "batch_invariant": INVARIANT,
            "max_rows": 8,
            "checkpoint_every_steps": 5,
            "lease_s": 6.0,
            "sweep_s": 1.0,
            "maintainer_lease_s": 5.0,
            "call_timeout_s": 5.0,
            "lookup_timeout_s": 5.0,
            "log_level": "warning",
        }
        if form.lane_order == "urgent":
            settings |= {"lane_order": "urgent", "scheduler": "slack", "set_aside": True, "max_rows": URGENT_ROWS}
        if form.clips:
            settings |= {
                "video": str(models / tiny_clips.CLIPS),
                "max_message_bytes": 2**16,
                "segmenter": str(models / SEGMENTER),
                "segment_threshold": 0.0,  # random weights are unsure of everything
                "reuse_bound": "flexcache",
                "reuse_rules": "paper",
            }
        super().__init__(folder, replicas=form.replicas, settings=settings | changes)
        self.told = settings | changes
        self.step_ms, self._clocks_s = form.step_ms, form.clocks_s
        self._of_images = f"gpu_worker-{form.replicas['gpu_worker']}"

    def own(self, name: str) -> Mapping[str, str]:
        """Return what gives a service its own clock: of two replicas one is ahead, and the other behind."""
        if not self._clocks_s:
            return {}
        ahead = sum(name.encode()) % 2 == 0
        shift = f"{self._clocks_s if ahead else -self._clocks_s:+g}"
        return {"LD_PRELOAD": faketime(), "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1"}

    def _service(self, name: str) -> Server:
        server = super()._service(name)
        if name == self._of_images:
            server.environment = {**server.environment, variable("video"): ""}
        return server


def faketime() -> str:
    """Return the path of the library that shifts a process's clock. Skips the test where it is not installed."""
    for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"):
        return str(path)
    pytest.skip("FAULTS_CLOCKS needs Debian's libfaketime")


def build_models(folder: Path, form: Form) -> Path:
    """A UNet of one level, whose step of four rows takes 5 ms; for clips a model whose step of four frames takes 25,
    and a segmenter. A clip may skip few steps by a whole prompt, and more by a pair."""
    models = tiny.build(folder, channels=(16,))
    if form.clips:
        tiny_clips.build(models)
        table = named_table(replace(FIG_10, levels=FIG_10.levels[:1]))
        (models / tiny_clips.CLIPS / table_file(table)).write_text(json.dumps(table_to_json(table)))
        tiny_clipseg(models / SEGMENTER)
    return models


def asked(form: Form, chance: random.Random, name: str = "key") -> dict[str, dict[str, Any]]:
    """Key → the fields of its request: misses, hits, repeats and jobs without cache, as chance has it. Clips come
    between the images."""
    requests: dict[str, dict[str, Any]] = {}
    clips = frozenset(chance.sample(range(form.jobs), form.clips) if form.clips else ())
    for number in range(form.jobs):
        clip = number in clips
        like = [fields for fields in requests.values() if ("modality" in fields) == clip]
        if like and chance.random() < 0.05:
            fields = dict(chance.choice(like))  # an exact repeat, if the first is cached by then
        else:
            fields = {
                "prompt": f"{chance.choice(SIZES)} {chance.choice(COLOURS)} {chance.choice(THINGS)} "
                f"{chance.choice(PLACES)}",
                "seed": chance.randrange(2**31),
                "steps": STEPS,
                "guidance": chance.choice((1.0, 1.0, 2.5)),
                **dict(zip(("width", "height"), chance.choice(PIXELS), strict=True)),
                "cache": chance.choices(("auto", "off"), (4, 1))[0],
                "fresh_noise": chance.choice((0.0, 0.0, 0.3)),
                "variation": "same",
            }
            if number % 3 == 0:  # without `drop_if_late`, so that each still gets its image
                fields["deadline_s"] = chance.choice(DEADLINES_S)
            if clip:
                fields |= {"modality": "video", "steps": form.clip_steps, "frames": chance.choice(LENGTHS)}
                fields |= {"width": 32, "height": 32}
        requests[f"{name}-{number}"] = fields
    return requests


PIXELS = ((32, 32), (32, 32), (48, 32), (32, 48), (48, 48))
"""Width and height of images."""
DEADLINES_S = (3.0, 10.0, 30.0, 100.0)
"""The first is missed where jobs wait, the last is met unless many workers die."""
LENGTHS = (4, 4, 4, 4, 4, 4, 4, 12)
"""Frames of clips; twelve exceed half a message, so that clients read the clip in parts."""
SIZES = ("a tiny", "a small", "a large", "a huge")
COLOURS = ("red", "blue", "green", "yellow", "purple", "white", "black", "orange")
THINGS = ("cube", "ball", "cone", "fox", "boat", "house", "tree", "teapot", "bicycle", "lighthouse")
PLACES = ("in the snow", "on a table", "by the sea", "at night", "in a field", "under a bridge", "in fog")
