"""Jobs: limits of a request, times of waiting and running, retention, and recovery from a crash."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section

SloClasses = dict[
    Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,32}$")], Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
]


class Jobs(Section):
    """The gateway's limits first, then a job's way from its lane to its result."""

    max_prompt_chars: int = Field(
        2000, ge=1, description="Characters that a prompt may have, and a negative prompt as well."
    )
    max_steps: int = Field(
        1000, ge=1, description="Largest number of denoising steps T of a request. A model's card may allow fewer."
    )
    max_pixel_steps: int = Field(
        2**32,
        ge=1,
        description="Largest product of frames, pixels of one frame and steps of a request. It bounds the work of one "
        "clip; the default allows 64 frames of 1024×1024 in 50 steps.",
    )
    max_pixels: int = Field(
        0,
        ge=0,
        description="Largest product of frames and pixels of one frame, of a request and of all requests of one model "
        "that share a denoising step. It bounds memory beside max_rows. 0: what the free memory of the workers holds "
        "by the estimate of `afterimage models check`, and at most 128 frames of 1024×1024 (2^27).",
    )
    max_images: int = Field(
        8, ge=1, le=64, description="Images that one request may ask for (`n`). Each takes a place in the queue."
    )
    max_upload_bytes: int = Field(
        16 * 2**20,
        ge=0,
        description="Bytes of the image that a request sends along to start from, with its mask. 0: no uploads. The "
        "image may have 2^24 pixels (4096×4096).",
    )
    max_queued: int = Field(
        256,
        ge=1,
        description="Jobs that may wait. Above this number the gateway refuses new jobs with a retry delay, except "
        "those of a tenant below its equal share. So up to twice as many may wait where several tenants do.",
    )
    slo_classes: SloClasses = Field(
        {"tight": 2.0, "standard": 5.0, "loose": 10.0},
        max_length=16,
        description="Classes of deadlines that a request may name in `slo`, each a multiple of the time that the "
        "request takes alone (PatchedServe §8: 5). As JSON.",
    )
    refuse_late: bool = Field(
        False,
        description="Refuse a request whose predicted finish is after its deadline, with the earliest deadline that "
        "could be met, instead of accepting it.",
    )
    min_free_bytes: int = Field(
        64 * 2**20,
        ge=0,
        description="Free bytes on the data directory's disk. Below this limit the gateway refuses new jobs, and below "
        "half of it exact repeats too.",
    )
    idempotency_keep_s: Seconds = Field(
        24 * 3600.0, description="Seconds for which an idempotency key returns the job that it first named (24 hours)."
    )
    results_keep_s: Seconds = Field(
        7 * 24 * 3600.0,
        description="Seconds for which a finished job keeps its row and its image (7 days), unless `kept_jobs` of "
        "`tenant_limits` ends it before.",
    )

    lease_s: Seconds = Field(
        15.0,
        description="Seconds without a renewal after which a running job goes to another worker. A larger value "
        "tolerates longer stalls and delays the recovery from a crash.",
    )
    max_attempts: int = Field(
        3, ge=1, description="Errors of a job itself after which the job fails for good. Crashes are counted apart."
    )
    lane_order: Literal["arrival", "urgent"] = Field(
        "arrival",
        description="Which job of a tenant a worker with a free row takes from a lane: arrival takes the first of the "
        "two bands of priority; urgent takes the job of the least slack, which costs one more read of the catalog for "
        "each job. In both, the tenant that got the least work goes first. Jobs that a worker has claimed before keep "
        "their order of arrival. Set scheduler=slack beside it.",
    )
    checkpoint_every_steps: int = Field(
        -1,
        ge=-1,
        description="Denoising steps between two crash checkpoints of a job; 0 writes none. The default, -1, means 10 "
        "over a broker, and none in one process, where no other worker could resume.",
    )
    checkpoint_gap_s: float = Field(
        -1.0,
        ge=-1,
        description="Least seconds between two checkpoints of a job. -1 means 1 s where `checkpoint_every_steps` is "
        "-1, and 0 s where that number is set.",
    )
    sweep_s: Seconds = Field(
        15.0, description="Seconds between two searches for jobs without a confirmed task and for expired leases."
    )
    resend_s: Seconds = Field(
        600.0,
        description="Seconds of waiting after which the gateway sends a job's task to its lane again, because the "
        "broker may have lost the task. The in-process bus loses none and ignores this setting.",
    )
    drain_s: Seconds = Field(
        20.0,
        description="Seconds that running jobs have to finish when the process stops. After that, unfinished jobs "
        "return to their lane.",
    )
    fetch_timeout_s: Seconds = Field(
        5.0,
        description="Seconds that reading one cached latent or image may take. After that the job starts from an "
        "earlier step or from noise.",
    )
    progress_per_s: float = Field(
        5.0, gt=0, le=60, description="Progress events per second and job, at most. Steps in between are not reported."
    )
