"""Draws a finished job again from its recorded plan, to show that a picture is a function of it."""

from __future__ import annotations

from services.gpu_worker.codecs import decode_png, decode_state
from services.gpu_worker.engine import Engine
from services.gpu_worker.events import Finished, Left
from services.gpu_worker.families import Family
from services.gpu_worker.rows import FromNoise, FromPicture, FromState, Start, Task
from shared.errors import ModelError
from shared.types import Plan, PlanSource, Request


def start_of(plan: Plan, blob: bytes | None) -> Start:
    """Where the plan says the picture starts; `blob` is what lies under its state_key.

    Raises BlobCorruptError when the blob is not what the plan names, ModelError when it is missing.
    """
    if plan.source is PlanSource.NOISE or plan.start_step == 0:
        return FromNoise()
    if blob is None:
        raise ModelError(f"the plan starts from {plan.state_key!r}, which was not given")
    match plan.source:
        case PlanSource.LATENT:
            latent = decode_state(blob, plan.state_codec)
            return FromState(latent, plan.start_step, plan.fresh_noise, plan.noise_seed)
        case PlanSource.IMAGE:
            return FromPicture(decode_png(blob), plan.start_step)
        case _:
            raise ModelError(f"a picture cannot be drawn from a plan with source {plan.source.value!r}")


def task_of(task_id: str, request: Request, plan: Plan, start: Start) -> Task:
    """The engine's task for a request drawn as its plan says."""
    return Task(
        id=task_id,
        model=plan.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        size=request.size,
        steps=request.steps,
        guidance=request.guidance,
        seed=request.seed,
        start=start,
        capture_steps=plan.capture_steps,
        priority=request.priority,
        drop_if_late=request.drop_if_late,
    )


def redraw(family: Family, request: Request, plan: Plan, blob: bytes | None = None) -> Finished:
    """Runs the plan alone, on the calling thread; bit-equal to the job's run under `batch_invariant` (design §6)."""
    engine = Engine({plan.model: family}, max_rows=1)
    engine.submit(task_of("redraw", request, plan, start_of(plan, blob)))
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Finished):
                return event
            if isinstance(event, Left):
                raise event.error
    raise ModelError("the engine ended without a picture")
