"""Jobs: what a client may ask for, how long a job waits, runs and stays, and what a crash costs."""

from __future__ import annotations

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section


class Jobs(Section):
    """A job: the gateway's limits first, then from its lane to its result."""

    max_prompt_chars: int = Field(2000, ge=1, description="Limit of a prompt, and of a negative prompt.")
    max_steps: int = Field(1000, ge=1, description="T that may be asked for; a model's card may allow fewer.")
    max_queued: int = Field(256, ge=1, description="Jobs waiting before new ones are refused with a retry delay.")
    min_free_bytes: int = Field(64 * 2**20, ge=0, description="Free disk below which new jobs are refused.")
    idempotency_keep_s: Seconds = Field(24 * 3600.0, description="How long an idempotency key holds.")
    results_keep_s: Seconds = Field(7 * 24 * 3600.0, description="How long a job that ended keeps its row and image.")

    lease_s: Seconds = Field(15.0, description="A running job not renewed for this long goes to another worker.")
    max_attempts: int = Field(3, ge=1, description="Errors of a job's own, after which it has failed for good.")
    checkpoint_every_steps: int = Field(
        -1, ge=-1, description="Crash checkpoints every m steps; 0: off; -1: 10 over a broker, off in one process."
    )
    checkpoint_gap_s: float = Field(
        -1.0, ge=-1, description="… and this long apart; -1: 1 s where the steps are left to us, 0 where they are set."
    )
    sweep_s: Seconds = Field(15.0, description="How often unconfirmed jobs and dead leases are looked for.")
    resend_s: Seconds = Field(
        600.0, description="A job that waits this long is sent to its lane again: the broker may have lost its task."
    )
    drain_s: Seconds = Field(20.0, description="How long running images may take to finish when the process ends.")
    fetch_timeout_s: Seconds = Field(
        5.0, description="Limit of reading one cached state or image; beyond it the image is generated without it."
    )
    progress_per_s: float = Field(5.0, gt=0, le=60, description="Steps of one job that are reported, at most.")
