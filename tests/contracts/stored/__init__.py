"""What the files of this folder say, as values of today's code: every field of each differs from its default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shared.domain import messages
from shared.domain.types import (
    CacheMode,
    Candidate,
    Captured,
    CompatKey,
    Entry,
    Job,
    JobState,
    Modality,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Result,
    Scope,
    Size,
    Source,
    State,
    Timings,
    vector_bytes,
)
from shared.models.k_table import Cell, KTable, Level, profile_kind, profile_of, table_to_json
from shared.models.latency import KIND as LATENCY

VECTOR = np.array([0.6, 0.0, -0.8], dtype=np.float32)
COMPAT = CompatKey(weights_hash="weights-a", sampler="ddim-1", dtype="bfloat16", size=Size(64, 96), steps=40)
TIMINGS = Timings(
    embed_s=0.01, predict_s=0.02, plan_s=0.03, accept_s=0.04, queue_s=0.05, fetch_s=0.06, encode_s=0.07,
    denoise_s=0.08, decode_s=0.09, store_s=0.11, total_s=0.56,
)  # fmt: skip
RESULT = Result(
    picture_key="pictures/job-succeeded-3.png",
    picture_sha256="ab12",
    picture_bytes=1234,
    model="tiny",
    weights_hash="weights-a",
    steps_run=33,
    timings=TIMINGS,
    warnings=("prompt: only the first 77 of 90 tokens were read",),
    captured=(
        Captured(step=5, key="states/job-succeeded-3-5.safetensors", bytes=64, codec="fp16", sha256="cd34"),
        Captured(step=10, key="states/job-succeeded-3-10.safetensors", bytes=65, codec="int4", sha256="ef56"),
    ),
    compat=COMPAT,
)
REQUEST = Request(
    prompt="a red cube, naïve ☂",
    size=Size(width=64, height=96),
    steps=40,
    guidance=6.5,
    seed=2**64 - 1,
    seed_given=False,
    negative_prompt="fog",
    modality=Modality.VIDEO,
    frames=8,
    quality="small",
    cache=CacheMode.READ,
    scope=Scope.PRIVATE,
    tenant="acme",
    user="ann",
    priority=7,
    deadline_s=12.5,
    drop_if_late=True,
    savings=0.25,
    fresh_noise=0.125,
)
FALLBACK = Plan(
    source=PlanSource.IMAGE,
    model="small",
    start_step=9,
    sources=(Source(entry_id="entry-b", key="pictures/job-b-1.png", sha256="99", codec="png"),),
    may_run=(ModelPlan(model="small", start_step=9, guidance=5.5, steps=30),),
    reason="an image is similar",
)
PLAN = Plan(
    source=PlanSource.LATENT,
    model="large",
    start_step=20,
    sources=(Source(entry_id="entry-a", key="states/job-a-1-20.safetensors", sha256="77", codec="fp16"),),
    similarity=0.875,
    capture_steps=(25, 30),
    may_run=(ModelPlan(model="large", start_step=20, guidance=4.5, steps=None),),
    fresh_noise=0.125,
    noise_seed=11,
    weights_hash="weights-a",
    candidates=(
        Candidate(
            entry_id="entry-a",
            kind="latent",
            similarity=0.875,
            allowed_step=25,
            start_step=20,
            prompt="a red cube",
            chosen=True,
            reason="the nearest",
            model="large",
        ),
    ),
    reason="a latent is similar",
    degraded=("match_predictor: away",),
    predicted_hit=True,
    looked_up=True,
    found=True,
    sampled=True,
    miss_model="large",
    fallback=FALLBACK,
)
JOBS = (
    Job(
        id="job-queued", request=REQUEST, plan=PLAN, state=JobState.QUEUED, attempt=1, failures=2, crashes=3,
        crashes_alone=1, exposed_from=1000.5, exposed_s=20.5, alone_s=10.25, lane="generate.refine.video",
        error="a first try failed", created_at=1000.25, updated_at=1001.25, vector=vector_bytes(VECTOR),
        encoder_hash="clip-1", exact_key="exact-1", checkpoint_key="checkpoints/job-queued-1-12.safetensors",
        checkpoint_step=12, warnings=("the prompt is long",), confirmed=True,
    ),
    Job(
        id="job-running",
        request=replace(REQUEST, cache=CacheMode.WRITE, scope=Scope.PUBLIC, modality=Modality.IMAGE),
        plan=FALLBACK, state=JobState.RUNNING, attempt=2, exposed_from=1002.5, worker="worker-1",
        lane="generate.refine", created_at=1002.25, updated_at=1003.25, lease_until=4e9, vector=vector_bytes(VECTOR),
        encoder_hash="clip-1", exact_key="exact-2", confirmed=True,
    ),
    Job(
        id="job-succeeded", request=replace(REQUEST, cache=CacheMode.AUTO, scope=Scope.TENANT, deadline_s=None),
        plan=Plan(source=PlanSource.NOISE, model="tiny"), state=JobState.SUCCEEDED, attempt=3, worker="worker-1",
        lane="generate.tiny", result=RESULT, created_at=1004.25, updated_at=1005.25, vector=vector_bytes(VECTOR),
        encoder_hash="clip-1", exact_key="exact-3", confirmed=True,
    ),
    Job(
        id="job-failed", request=replace(REQUEST, cache=CacheMode.OFF),
        plan=Plan(source=PlanSource.STITCHED, model="tiny", predicted_hit=False, found=False), state=JobState.FAILED,
        attempt=4, failures=3, lane="generate.tiny", error="the disk is full", created_at=1006.25, updated_at=1007.25,
        vector=b"", encoder_hash="clip-1", exact_key="exact-4", confirmed=True, buried=True,
    ),
    Job(
        id="job-cancelled", request=REQUEST,
        plan=Plan(source=PlanSource.EXACT, model="tiny", sources=(Source("entry-a"),)),
        state=JobState.CANCELLED, attempt=5, lane="generate.tiny", created_at=1008.25, updated_at=1009.25,
        result=Result("", "", 0, "tiny", "weights-a", 7), vector=b"", encoder_hash="clip-1", exact_key="exact-5",
        confirmed=True,
    ),
)  # fmt: skip
ENTRIES = tuple(
    Entry(
        id=f"entry-{scope.value}", job_id=f"job-of-{scope.value}", prompt="a red cube, naïve ☂", tenant="acme",
        user="ann", scope=scope, model="tiny", compat=COMPAT, exact_key=f"exact-{scope.value}",
        picture_key=f"pictures/job-of-{scope.value}-1.png", picture_sha256="ab12", encoder_hash="clip-1",
        created_at=2000.5,
        states=(
            State(
                entry_id=f"entry-{scope.value}", step=0, key=f"pictures/job-of-{scope.value}-1.png", bytes=1234,
                codec="png", sha256="ab12", uses=2, created_at=2000.5, used_at=2002.5,
            ),
            State(
                entry_id=f"entry-{scope.value}", step=15, key=f"states/job-of-{scope.value}-1-15.safetensors", bytes=64,
                codec="fp16", sha256="cd34", uses=3, created_at=2001.5, used_at=2003.5,
            ),
        ),
    )
    for scope in Scope
)  # fmt: skip
TABLE = KTable(
    levels=(Level(k=5, min_similarity=0.75), Level(k=10, min_similarity=0.875)),
    steps=40,
    model="small",
    weights_hash="weights-b",
    encoder_hash="clip-1",
    alpha=0.95,
    source="measured",
    cells=(
        Cell(
            k=5, min_similarity=0.75, max_similarity=0.8, count=9, mean_ratio=0.99, lower_bound=0.97, judged=8,
            kept=0.5, kept_from_noise=0.625, kept_lower_bound=0.25, safe=True,
        ),
    ),
    images_from="large",
    images_weights_hash="weights-a",
    encoder_weights="feed",
    assumed=True,
)  # fmt: skip
PROFILES: dict[tuple[str, str, str], dict[str, Any]] = {
    (profile_kind(0.95, images=True), profile_of(TABLE), "weights-b"): table_to_json(TABLE),
    (profile_kind(0.9), "small", "weights-b"): table_to_json(replace(TABLE, alpha=0.9, images_from="")),
    (LATENCY, "small", "weights-b"): {
        "size": "64x64", "threads": 2, "device": "cpu", "step_s": {"1": 0.01}, "decode_s": 0.02
    },
}  # fmt: skip
SENT: tuple[messages.Message, ...] = (
    messages.GenerateImage(job_id="j", state_key="states/a", state_sha256="77", previews=True),
    messages.JobQueued(
        job_id="j", lane="generate.refine", model="small", source="image", start_step=9, predicted_hit=True,
        found=False, sampled=True, steps=40, modality="video", only="small",
    ),
    messages.JobCancelled(job_id="j"),
    messages.Progress(job_id="j", step=3, steps=40, preview="aGk="),
    messages.PreviewsRequested(job_id="j"),
    messages.JobSucceeded(
        job_id="j", attempt=2, worker="w", model="tiny", steps_run=31, picture_key="pictures/j-2.png",
        picture_sha256="ab",
    ),
    messages.JobFailed(job_id="j", attempt=2, error="the disk is full"),
    messages.StateUsed(entry_id="e", step=5),
    messages.StateLost(entry_id="e", step=5, key="states/a"),
    messages.EntriesCached(entry_ids=("e", "f")),
    messages.EntriesEvicted(entry_ids=("e",), holes=("f", "g")),
    messages.DataErased(job_ids=("e", "f")),
    messages.WorkerReported(
        worker="w", kind="cuda:H100", model="large", rows=3, max_rows=8, step_s=(("large", 1, 0.5), ("small", 4, 0.25)),
        cannot=("other",), leaving=True,
    ),
    messages.WorkersAssigned(assignments=(("w", "large"), ("v", "small")), mode="throughput"),
    messages.VideoSegmented(job_id="j", mask_key="masks/a"),
)  # fmt: skip
