"""A policy's real run as values: the load that is offered, the answer to each request, and the whole sitting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.replay.traces.trace import Trace
from shared.client import Picture
from shared.domain.types import PlanSource
from shared.models.card import ModelCard
from shared.models.k_table import KTable


@dataclass(frozen=True)
class Load:
    """What every policy is offered alike."""

    trace: Trace
    """With the sizes and steps that are asked for."""
    warmup: int
    card: ModelCard
    steps: int = 50
    """T of every request, where the trace does not give each its own."""
    seed: int = 0
    """Request n is drawn with this seed plus n: the same noise under every policy, and no exact repeats."""
    one_at_a_time: bool = False
    """Each is asked once what the one before left is indexed, on a clock that stands at its arrival."""
    table: KTable | None = None
    """None: the model's own."""

    @property
    def usual_steps(self) -> int:
        """The median T."""
        return int(np.median(self.trace.asked(self.steps)))

    @property
    def unusual_steps(self) -> int:
        """The T that is farthest from it."""
        asked = self.trace.asked(self.steps)
        return int(asked[np.argmax(np.abs(asked - self.usual_steps))])


@dataclass(frozen=True)
class Answer:
    """One request of the trace, served."""

    request: int
    latency_s: float
    """From its arrival, whenever it was sent, to the picture."""
    job: str = ""
    start_step: int = 0
    entry: str = ""
    """The job whose state or picture it started from."""
    similarity: float = 0.0
    steps_run: int = 0
    queue_s: float = 0.0
    predicted: bool | None = None
    """Whether the match predictor let it through; None: it was not asked."""
    degraded: tuple[str, ...] = ()
    error: str = ""
    """Why there is no picture."""
    clip: float | None = None
    """Cosine of picture and prompt."""


@dataclass(frozen=True)
class Sitting:
    """A policy's whole run."""

    answers: tuple[Answer, ...]
    """In the trace's order."""
    alone_s: float
    """Of a picture drawn alone, in the usual steps."""
    wall_s: float
    """From the first arrival to the last picture, warm-up included."""
    processor_s: float
    """Of this process meanwhile: services, models and client."""
    evicted: int
    """After the warm-up."""
    states: int
    bytes: int
    step_s: float = 0.0
    """What each step more of a picture drawn alone takes; 0 where all take the same."""


def answer_of(number: int, picture: Picture, latency_s: float) -> Answer:
    """What a replay keeps of a picture."""
    plan = picture.plan
    return Answer(
        request=number,
        latency_s=latency_s,
        job=picture.job.id,
        start_step=plan.start_step,
        entry=plan.entry_id if plan.source is not PlanSource.NOISE else "",
        similarity=plan.similarity if plan.source is not PlanSource.NOISE else 0.0,
        steps_run=picture.steps_run,
        queue_s=picture.timings.queue_s,
        predicted=plan.predicted_hit,
        degraded=plan.degraded,
    )
