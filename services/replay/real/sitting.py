"""Values of a policy's run on real models: the load, the answer to each request, and the whole run."""

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
    """Inputs that are the same for every policy."""

    trace: Trace
    """The trace, with the sizes and steps of the requests."""
    warmup: int
    card: ModelCard
    steps: int = 50
    """T of every request, if the trace has no T of its own."""
    seed: int = 0
    """Request n has this seed plus n: the same noise under every policy, and no exact repeats."""
    one_at_a_time: bool = False
    """Send each request after the previous request's states are indexed, with the cache's clock at its arrival."""
    table: KTable | None = None
    """K table of every policy; None: the services' own."""
    pair_table: KTable | None = None
    """K table of every policy with pairs; None: the services' own."""

    @property
    def usual_steps(self) -> int:
        """Return the median T."""
        return int(np.median(self.trace.asked(self.steps)))

    @property
    def unusual_steps(self) -> int:
        """Return the T that is farthest from the median T."""
        asked = self.trace.asked(self.steps)
        return int(asked[np.argmax(np.abs(asked - self.usual_steps))])


@dataclass(frozen=True)
class Answer:
    """Answer to one request of the trace."""

    request: int
    latency_s: float
    """Seconds from the arrival in the trace to the image; a late sending counts as latency."""
    job: str = ""
    start_step: int = 0
    entry: str = ""
    """Job whose state or image was the start; of a pair, the object's."""
    second: str = ""
    """Of a pair: job whose state gave the background."""
    similarity: float = 0.0
    steps_run: int = 0
    queue_s: float = 0.0
    predicted: bool | None = None
    """True if the match predictor let the request through; None: no predictor."""
    degraded: tuple[str, ...] = ()
    error: str = ""
    """Error of a request without an image."""
    clip: float | None = None
    """Cosine of image and prompt; of a clip, the mean over its frames."""


@dataclass(frozen=True)
class Sitting:
    """A policy's whole run."""

    answers: tuple[Answer, ...]
    """Answers in the trace's order."""
    alone_s: float
    """Seconds of an image generated alone, with the usual steps."""
    wall_s: float
    """Seconds from the first arrival to the last image, warm-up included."""
    processor_s: float
    """Processor seconds of this process in that time: services, models and client."""
    evicted: int
    """States and images evicted after the warm-up."""
    states: int
    bytes: int
    step_s: float = 0.0
    """Seconds of each additional step of an image generated alone; 0 if every request has the same T."""


def answer_of(number: int, picture: Picture, latency_s: float) -> Answer:
    """Return the fields of a generated image that a replay keeps."""
    plan = picture.plan
    second = plan.sources[1].entry_id if plan.source is PlanSource.STITCHED else ""
    return Answer(
        request=number,
        latency_s=latency_s,
        job=picture.job.id,
        start_step=plan.start_step,
        entry=plan.entry_id if plan.source is not PlanSource.NOISE else "",
        second=second,
        similarity=plan.similarity if plan.source is not PlanSource.NOISE else 0.0,
        steps_run=picture.steps_run,
        queue_s=picture.timings.queue_s,
        predicted=plan.predicted_hit,
        degraded=plan.degraded,
    )
