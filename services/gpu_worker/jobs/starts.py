"""The engine's start and task of a plan whose blobs were read."""

from __future__ import annotations

from typing import Any

from services.gpu_worker.engine.rows import FromNoise, FromPicture, FromState, Kept, Pixels, Start, Task
from services.gpu_worker.jobs.codecs import decode_masked_png, decode_png, decode_state, fitted, noises_of
from shared.domain.errors import BlobCorruptError, ModelError
from shared.domain.types import Lead, Plan, PlanSource, Request, Size, Upload, text_owner


def start_of(plan: Plan, blob: bytes | None, size: Size, base: bytes = b"") -> Start:
    """Return the start that the plan names, for an image of this size. blob: the bytes under the plan's state_key;
    base: those of the state that this one needs.

    Raises BlobCorruptError when the blob is not of the kind that the plan names, ModelError when `blob` is None.
    """
    if plan.is_miss:
        return FromNoise()
    if blob is None:
        raise ModelError(f"the plan starts from blob {plan.state_key!r}, but no blob was given")
    match plan.source:
        case PlanSource.LATENT:
            latent = decode_state(blob, plan.state_codec, base)
            noises = noises_of(blob, plan.state_codec)
            return FromState(latent, plan.start_step, plan.fresh_noise, plan.noise_seed, noises)
        case PlanSource.IMAGE | PlanSource.UPLOAD:
            pixels = fitted(decode_png(blob), size)
            last = pixels[-1] if plan.lead is not None and pixels.ndim == 4 else pixels
            return FromPicture(last, plan.start_step)
        case _:
            raise ModelError(f"the plan's source must be noise, latent, image or upload (got {plan.source.value!r})")


def task_of(task_id: str, request: Request, plan: Plan, start: Start, **ride: Any) -> Task:
    """Return the engine's task for a request that follows this plan; `ride`: the Task's other fields."""
    return Task(
        id=task_id,
        model=plan.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        text_owner=text_owner(request),
        size=request.size,
        frames=request.frames,
        steps=plan.run_steps(request.steps),
        guidance=plan.run_guidance(request.guidance),
        prompted_from=plan.prompted_from,
        seed=request.seed,
        start=start,
        capture_steps=plan.capture_steps,
        priority=request.priority,
        drop_if_late=request.drop_if_late,
        **ride,
    )


def lead_of(lead: Lead, blob: bytes, size: Size) -> Pixels:
    """Return the frames of a lead, of this size. Raises BlobCorruptError for a blob of other frames."""
    pixels = fitted(decode_png(blob), size)
    frames = pixels if pixels.ndim == 4 else pixels[None]
    if len(frames) != lead.frames:
        raise BlobCorruptError(f"blob {lead.key}: a clip must have {lead.frames} frames (got {len(frames)})")
    return frames


def kept_of(upload: Upload, blob: bytes, size: Size) -> Kept:
    """Return an uploaded image and the pixels that its mask names. Raises BlobCorruptError for another image."""
    pixels, anew = decode_masked_png(blob)
    if anew.shape != (size.height, size.width):
        raise BlobCorruptError(f"blob {upload.key}: the image must have size {size} (got shape {anew.shape})")
    return Kept(pixels, anew)
