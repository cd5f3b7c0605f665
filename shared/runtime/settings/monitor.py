"""Monitor: which worker runs which model, and when that changes (MoDM §5.3)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.runtime.settings.section import Gains, Seconds, Section


class Monitor(Section):
    """The global monitor, and the reports it decides by."""

    monitor_mode: Literal["quality", "throughput"] = Field(
        "throughput", description="Hits to small models, or as many large models as the demand allows (MoDM §5.3)."
    )
    monitor_period_s: Seconds = Field(180.0, description="How often models are assigned anew.")
    monitor_window_s: Seconds = Field(180.0, description="The demand is what was asked for in so many seconds.")
    monitor_gains: Gains = Field(
        (0.6, 0.05, 0.05), description="P, I and D of the number of large models, per minute (MoDM §5.3)."
    )
    monitor_hysteresis: float = Field(
        0.25, ge=0, le=2, description="Workers beyond a half by which the PID must be off before one switches."
    )
    monitor_headroom: float = Field(0.1, ge=0, le=2, description="Share of throughput kept free of the demand.")
    monitor_catch_up_s: float = Field(
        600.0, ge=0, description="What waits counts as demand that is to be gone by then; 0: only what arrives counts."
    )
    monitor_turn_s: Seconds = Field(
        30.0,
        description="Work waits this long in the lane of a model that no worker runs, then one goes over to it; longer "
        "where a switch takes long.",
    )
    report_s: Seconds = Field(
        5.0, description="How often workers report what they run; after three missed reports they are gone."
    )

    @model_validator(mode="after")
    def _check_gains(self) -> Self:
        if not all(gain >= 0 for gain in self.monitor_gains) or not any(self.monitor_gains[:2]):
            raise ValueError(f"monitor_gains: none below 0, P or I above it (got {self.monitor_gains})")
        return self
