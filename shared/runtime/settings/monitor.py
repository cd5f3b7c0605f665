"""Monitor: the assignment of models to workers, and when the assignment changes (MoDM §5.3)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.runtime.settings.section import Gains, Seconds, Section


class Monitor(Section):
    """The global monitor, and the worker reports that it reads."""

    monitor_mode: Literal["quality", "throughput"] = Field(
        "throughput",
        description="throughput: small models take the hits. quality: as many workers run the large model as the "
        "demand allows (MoDM §5.3).",
    )
    monitor_period_s: Seconds = Field(
        180.0,
        description="Seconds between two assignments of models to workers. Choose a period longer than a model switch, "
        "or no switch pays back.",
    )
    monitor_window_s: Seconds = Field(
        180.0, description="Seconds over which the demand is measured. A longer window follows changes more slowly."
    )
    monitor_gains: Gains = Field(
        (0.6, 0.05, 0.05),
        description="Gains P, I and D, per minute, of the PID controller of the number of large models (MoDM §5.3). "
        "None may be negative, and P or I must be above 0.",
    )
    monitor_hysteresis: float = Field(
        0.25,
        ge=0,
        le=2,
        description="Workers, on top of one half, by which the PID output must differ from the current number before "
        "a worker switches. Raise it when workers switch back and forth.",
    )
    monitor_headroom: float = Field(
        0.1,
        ge=0,
        le=2,
        description="Share planned on top of the measured demand, since a queue grows without end at exactly full "
        "use. Raise it when queues grow although the demand is met.",
    )
    monitor_catch_up_s: float = Field(
        600.0,
        ge=0,
        description="Seconds in which waiting work should be finished; that work counts as demand. A smaller value "
        "finishes it sooner; 0 counts only arrivals, as the paper does.",
    )
    monitor_turn_s: Seconds = Field(
        30.0,
        description="Seconds that work waits for a model that no worker runs before a worker switches to that model. "
        "The wait is at least four times the time of a switch.",
    )
    report_s: Seconds = Field(
        5.0,
        description="Seconds between two reports of a worker. After three missed reports the worker counts as gone.",
    )

    @model_validator(mode="after")
    def _check_gains(self) -> Self:
        if not all(gain >= 0 for gain in self.monitor_gains) or not any(self.monitor_gains[:2]):
            raise ValueError(
                f"monitor_gains: none may be negative, and P or I must be above 0 (got {self.monitor_gains})"
            )
        return self
