"""A running stack under load, with the parts of each answered request."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import Any

from bench.serving.processes import Counted, counted, grown
from bench.traced.closed_loop import stages
from load.arrivals import poisson
from load.sessions import MAIN_SIZE, read_trace
from scripts.stack.stack import Stack
from shared.client import AsyncClient, Picture
from shared.client.request_fields import RequestFields
from shared.domain.errors import AfterimageError
from shared.domain.types import PlanSource
from shared.service.backends import Backends

PARTS = (
    ("embed_s", "embedding: call and batching around the encoder"),
    ("predict_s", "match predictor"),
    ("plan_s", "retriever: index search, plan"),
    ("accept_s", "job row committed, task confirmed, announced"),
    ("queue_s", "claim, and wait for the engine (beyond that)"),
    ("fetch_s", "fetch the state"),
    ("between", "between the steps: decide, fold, previews, captures"),
    ("store_s", "PNG encoded, image and states stored"),
    ("rest", "finish committed, event received, row and image read, the call itself"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request: its client's wait, and the computing in it."""

    source: PlanSource
    total_s: float
    computing_s: float
    parts: dict[str, float]

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.computing_s


def sample(picture: Picture, total_s: float, step_s: float, forward_s: float) -> Sample:
    """Split one answer; `step_s`, `forward_s` are mean seconds of a step and of an encoder's forward pass in this
    round.

    A few slow steps raise the mean above the time of most requests. So at most this request's own denoising time is
    subtracted.
    """
    timings = stages(picture)
    steps_s = min(picture.steps_run * step_s, timings["denoise_s"])
    parts = {name: timings[name] for name, _ in PARTS if name in timings}
    parts["embed_s"] -= forward_s
    # a job waits in its queue from the creation of its row, while the gateway still finishes accepting it
    parts["queue_s"] = max(parts["queue_s"] - parts["accept_s"], 0.0)
    parts["between"] = timings["denoise_s"] - steps_s
    computing_s = steps_s + forward_s + timings["encode_s"] + timings["decode_s"]
    parts["rest"] = total_s - computing_s - sum(parts.values())
    return Sample(picture.plan.source, total_s, computing_s, parts)


class ClusterUnderTest:
    """A running stack, its clients, and the measurements on it."""

    def __init__(self, stack: Stack, client: AsyncClient, backends: Backends, options: argparse.Namespace) -> None:
        self.stack, self.client, self.backends, self.options = stack, client, backends, options
        rows = [row for row in read_trace() if (row.width, row.height) == MAIN_SIZE]
        laps = itertools.count()
        self._rows = ((row, f"{lap}-{row.user}") for lap in laps for row in rows)
        self.failed = 0

    async def ask(self) -> tuple[Picture, float]:
        """Send the next request of the trace, without a seed, so that it is no exact repeat."""
        row, user = next(self._rows)
        start = time.monotonic()
        asked: RequestFields = {
            "width": row.width,
            "height": row.height,
            "user": user,
            "steps": 50,
            "variation": "same",
        }
        picture = await self.client.generate(row.prompt, **asked)
        return picture, time.monotonic() - start

    async def closed_loop(self, clients: int, *, count: int = 0, seconds: float = 0.0) -> list[tuple[Picture, float]]:
        """Run `clients` clients, each sending again at once, until `count` answers or `seconds` are reached."""
        answers: list[tuple[Picture, float]] = []
        end = time.monotonic() + seconds

        async def client() -> None:
            while len(answers) < count or time.monotonic() < end:
                try:
                    answers.append(await self.ask())
                except AfterimageError:
                    self.failed += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return answers

    async def at_rate(self, count: int, rate: float, seed: int) -> list[Sample]:
        """Send `count` requests, each at its arrival time."""
        before = self.pages()
        begun, asked = time.monotonic(), list[asyncio.Task[tuple[Picture, float]]]()
        for at in poisson(rate, count, seed):
            await asyncio.sleep(begun + at - time.monotonic())
            asked.append(asyncio.create_task(self.ask()))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0.2)  # the worker counts its steps after it has sent the image
        after = self.pages()
        self.failed += sum(isinstance(one, BaseException) for one in answers)
        good = [one for one in answers if not isinstance(one, BaseException)]
        step_s = histogram_mean(before["gpu_worker-1"], after["gpu_worker-1"], "afterimage_step_seconds")
        forward_s = grown(
            before["embedder-1"], after["embedder-1"], "afterimage_stage_seconds_sum", stage="embed_forward"
        ) / len(answers)
        return [sample(picture, total_s, step_s, forward_s) for picture, total_s in good]

    def pages(self) -> dict[str, Counted]:
        return {name: counted(self.stack, name) for name in self.stack.names() if "-" in name}

    async def hit(self) -> Any:
        """Generate a hit and return its row."""
        for _ in range(500):
            picture, _ = await self.ask()
            if picture.plan.source is PlanSource.LATENT:
                return await self.backends.catalog.jobs.get(picture.job.id)
        raise RuntimeError("no hit in 500 requests; read the log of the cache maintainer")


def histogram_mean(before: Counted, after: Counted, histogram: str, **labels: str) -> float:
    count = grown(before, after, f"{histogram}_count", **labels)
    return grown(before, after, f"{histogram}_sum", **labels) / count if count else 0.0
