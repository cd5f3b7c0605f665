"""The client's view of a job, its image and the events of its stream, read from the gateway's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from protos import common_pb2, gateway_pb2
from shared.client.clip_file import Playback, most_fps, write_clip, write_poster, write_strip
from shared.client.image_file import facts_of, write
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.types import Job, Modality, Plan, Timings
from shared.runtime import animated_png
from shared.runtime.animated_png import Frames
from shared.runtime.rpc import error_named
from shared.runtime.rpc_types import job_from_proto, plan_from_proto, timings_from_proto

T = TypeVar("T")


@dataclass(frozen=True)
class JobView:
    """The client's view of a job."""

    job: Job
    model: str
    steps_run: int
    timings: Timings
    picture_bytes: int = 0
    picture_sha256: str = ""
    fps: float = field(default=0.0, kw_only=True)
    """Frames per second at which the job's clip plays; 0 for an image."""
    skipped: float = field(default=0.0, kw_only=True)
    """Share of the work of `steps_run` that took earlier outputs of the denoiser's blocks instead."""


@dataclass(frozen=True)
class Picture(JobView):
    """A finished job with its image."""

    png: bytes = b""
    """The result as stored: PNG, animated PNG of a clip."""
    index: int = 0
    """Number of the image among the images of its request: 0 for the seed, 1 for seed + 1, …"""

    @property
    def plan(self) -> Plan:
        """The start of the image, and the reason."""
        return self.job.plan

    @property
    def seed(self) -> int:
        """The seed of the image, given by the client or chosen by the gateway."""
        return self.job.request.seed

    def save(self, path: str | Path) -> None:
        """Write the image as PNG, JPEG or WebP, by the name's ending, with prompt, seed, model, steps and job id."""
        write(Path(path), self.png, self.job, self.model)


@dataclass(frozen=True)
class Clip(Picture):
    """A finished job with its clip."""

    @cached_property
    def frames(self) -> Frames:
        """RGB pixels, shape (frames, height, width, 3)."""
        return animated_png.decode(self.png)

    def save(self, path: str | Path, *, fps: float | None = None, scale: int = 1, resample: str = "lanczos") -> None:
        """Write the clip by the name's ending (shared/client/clip_file.py), with the metadata of `Picture.save`.

        fps: speed of playback; None: the model's, or the highest of the format. scale: pixels of the file per generated
        pixel. resample: `lanczos` or `nearest`. A name without an ending is a folder of PNG frames.
        """
        path = Path(path)
        playback = Playback(min(self.fps, most_fps(path)) if fps is None else fps, scale, resample)
        write_clip(path, self.frames, facts_of(self.job, self.model), playback)

    def save_poster(self, path: str | Path, *, scale: int = 1, resample: str = "lanczos") -> None:
        """Write the first frame as PNG, JPEG or WebP."""
        write_poster(Path(path), self.frames, facts_of(self.job, self.model), Playback(self.fps, scale, resample))

    def save_strip(self, path: str | Path, *, scale: int = 1, resample: str = "lanczos") -> None:
        """Write at most eight frames beside each other, from the first to the last, as PNG, JPEG or WebP."""
        write_strip(Path(path), self.frames, facts_of(self.job, self.model), Playback(self.fps, scale, resample))


@dataclass(frozen=True)
class Accepted:
    """First event of a stream: the job is stored and survives a restart."""

    job_id: str
    queue_position: int
    plan: Plan
    index: int = 0
    """Number of the image among the images of its request."""
    predicted_s: float = 0.0
    """Predicted seconds from acceptance to the finish, of a request with a deadline; 0: no prediction."""


@dataclass(frozen=True)
class Progress:
    """A worker has run `step` of `steps`. While the job waits, `queue_position` jobs are ahead of it."""

    job_id: str
    step: int
    steps: int
    preview: bytes = b""
    """A small PNG made from the latent, if the stream asked for previews; animated of a clip."""
    queue_position: int = 0
    waits_again: str = ""
    """Why a job that had started waits again, for example because its worker is gone."""
    index: int = 0
    """Number of the image among the images of its request."""


Event = Accepted | Progress | Picture


@dataclass(frozen=True)
class Failed:
    """One of several images that its request does not get."""

    index: int
    job_id: str
    error: AfterimageError


class ImagesFailedError(AfterimageError):
    """Some images of a request for several failed. The others are finished.

    Take the finished images from `pictures`. `errors` holds the error of each other image by its number, from 0.
    """

    def __init__(self, pictures: Sequence[Picture], failed: Sequence[Failed]) -> None:
        self.pictures = sorted(pictures, key=lambda one: one.index)
        self.errors = {one.index: one.error for one in failed}
        count = len(pictures) + len(failed)
        said = "; ".join(f"image {one.index + 1}: {one.error}" for one in sorted(failed, key=lambda one: one.index))
        super().__init__(f"{len(failed)} of {count} images failed: {said}")


def read_reply(reply: Any, read: Callable[[], T]) -> T:
    """Return the content of a reply; ConfigurationError for an unreadable one (gRPC gives None for malformed bytes)."""
    try:
        if reply is not None:
            return read()
        said = "the reply is malformed"
    except (ValueError, KeyError, TypeError) as error:
        said = str(error)
    raise ConfigurationError(f"another service, or another version of it, listens there; check the address ({said})")


def _fields(message: common_pb2.Job, *, planned: bool = False) -> dict[str, Any]:
    if not (message.id or planned):
        raise ValueError("a job without an id")
    return {
        "job": job_from_proto(message),
        "model": message.model,
        "steps_run": message.steps_run,
        "timings": timings_from_proto(message.timings),
        "picture_bytes": message.picture_bytes,
        "picture_sha256": message.picture_sha256,
        "fps": message.fps,
        "skipped": message.skipped,
    }


def view_of(message: common_pb2.Job, *, planned: bool = False) -> JobView:
    """planned: the job of a dry run, which has no id."""
    return JobView(**_fields(message, planned=planned))


def picture_of(message: common_pb2.Job, png: bytes, index: int = 0) -> Picture:
    fields = _fields(message)
    kind = Clip if fields["job"].request.modality is Modality.VIDEO else Picture
    return kind(**fields, png=png, index=index)


def image_of(message: gateway_pb2.Image, index: int) -> Picture | Failed:
    """Return one of several images."""
    if message.code:
        return Failed(index, message.job.id, error_named(message.code, message.error))
    return picture_of(message.job, message.picture, index)


def images_of(message: gateway_pb2.GenerateResponse) -> list[Picture | Failed]:
    """Return all images of a request."""
    if not message.images:
        return [picture_of(message.job, message.picture)]
    return [image_of(image, index) for index, image in enumerate(message.images)]


def finished(images: Sequence[Picture | Failed]) -> list[Picture]:
    """Return all images of a request; ImagesFailedError when some failed, the error itself of a single image."""
    pictures = [one for one in images if isinstance(one, Picture)]
    failed = [one for one in images if isinstance(one, Failed)]
    if failed:
        raise failed[0].error if len(images) == 1 else ImagesFailedError(pictures, failed)
    return pictures


def event_of(message: gateway_pb2.GenerateStreamResponse) -> Event | Failed:
    match message.WhichOneof("event"):
        case "accepted":
            it = message.accepted
            return Accepted(it.job_id, it.queue_position, plan_from_proto(it.plan), message.index, it.predicted_s)
        case "progress":
            step, known = message.progress, message.index
            waits = step.waits_again
            return Progress(step.job_id, step.step, step.steps, step.preview, step.queue_position, waits, known)
        case "result":
            return picture_of(message.result.job, message.result.picture, message.index)
        case "failed":
            return image_of(message.failed, message.index)
        case _:
            raise ValueError("an event that this version does not know")
