"""Jobs of clips as OpenAI's video objects."""

from __future__ import annotations

from typing import Any

from services.gateway.deadlines import outcome_error
from services.gateway.http.answers import origin
from services.gateway.http.api import Api
from services.gateway.http.errors import described
from shared.client.views import picture_of
from shared.domain.types import Job, JobState

_STATUSES = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
}


def video(job: Job, api: Api) -> dict[str, Any]:
    """Return the job as a video object. Progress is that of the last step that this gateway received."""
    message = api.calls.answers.job(job)
    view, request, done = picture_of(message, b""), job.request, job.state is JobState.SUCCEEDED
    steps = job.plan.run_steps(request.steps)
    fps = message.fps or (api.models.video.frames.fps if api.models.video else 0.0)
    ended_at = int(job.updated_at) if job.state.final else None
    return {
        "id": job.id,
        "object": "video",
        "model": view.model,
        "prompt": request.prompt,
        "status": _STATUSES[job.state],
        "progress": 100 if done else min(100 * api.calls.fanout.step(job) // max(steps, 1), 99),
        "created_at": int(job.created_at),
        "completed_at": ended_at if done else None,
        "expires_at": None if ended_at is None else int(ended_at + api.settings.results_keep_s),
        "size": str(request.size),
        "seconds": f"{request.frames / fps:g}" if fps else "0",
        "num_frames": request.frames,
        "error": _error(job),
        "remixed_from_video_id": None,
        "afterimage": origin(view),
    }


def _error(job: Job) -> dict[str, Any] | None:
    error = outcome_error(job) if job.state.final else None
    if error is None:
        return None
    body = described(error)[1]
    return {"code": body["code"], "message": body["message"]}
