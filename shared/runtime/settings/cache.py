"""Cache: which latents and images are kept, how they are stored, and which leave first."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.runtime.settings.section import Section, Steps

AFTERIMAGE_LEVELS = 10
"""The tables of `eviction_policy` afterimage have an entry for every set of levels that may be there."""


class Cache(Section):
    """Budgets and policies: latents first, then finished images."""

    cache_max_bytes: int = Field(1 * 2**30, ge=0, description="Byte budget of the cached latents.")
    eviction_policy: Literal["lcbfu", "lru", "lfu", "fifo", "lrbu", "afterimage"] = Field(
        "afterimage",
        description="Which latents leave first, and which are let in: afterimage learns what each saves; lcbfu is "
        "NIRVANA's (§5.4).",
    )
    capture_steps: Steps = Field((5, 10, 15, 20, 25), description="K kept, of T = 50 (NIRVANA §5.3).")
    state_codec: Literal["fp16", "fp32", "int8", "fp8", "int6", "int4"] = Field(
        "fp16", description="How latents are stored: the smaller, the more of them fit and the less exact they are."
    )
    insert_on_hit: bool = Field(True, description="Keep the states after a hit's start step too.")
    lcbfu_initial_uses: float = Field(
        1.0, ge=0, description="Uses f that a state is credited with at birth: f·K (lrbu too)."
    )

    image_tier: Literal["all", "large", "off"] = Field(
        "all", description="Whose finished images any model may start from: all, the large model's only, or none."
    )
    picture_policy: Literal["fifo", "lcbfu", "lru", "lfu"] = Field(
        "fifo", description="Which image leaves first; fifo is MoDM's sliding window."
    )
    picture_max_count: int = Field(100_000, ge=0, description="Images that can be started from.")
    picture_max_bytes: int = Field(1 * 2**30, ge=0, description="Their byte budget, beside that of the latents.")
    picture_max_age_s: float = Field(0.0, ge=0, description="An image older than this leaves; 0: at no age.")

    @model_validator(mode="after")
    def _check_capture_steps(self) -> Self:
        if any(not 0 < k < 50 for k in self.capture_steps):
            raise ValueError(f"capture_steps: every K lies between 1 and 49 of 50 (got {self.capture_steps})")
        if self.eviction_policy == "afterimage" and len(set(self.capture_steps)) > AFTERIMAGE_LEVELS:
            raise ValueError(
                f"capture_steps: eviction_policy afterimage learns of {AFTERIMAGE_LEVELS} K at most "
                f"(got {len(set(self.capture_steps))}); name fewer, or choose another eviction_policy"
            )
        return self
