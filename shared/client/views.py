"""The client's view of a job, its image and the events of its stream, read from the gateway's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from protos import common_pb2, gateway_pb2
from shared.client.image_file import write
from shared.domain.errors import ConfigurationError
from shared.domain.types import Job, Plan, Timings
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


@dataclass(frozen=True)
class Picture(JobView):
    """A finished job with its image."""

    png: bytes = b""

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
class Accepted:
    """First event of a stream: the job is stored and survives a restart."""

    job_id: str
    queue_position: int
    plan: Plan


@dataclass(frozen=True)
class Progress:
    """A worker has run `step` of `steps`. While the job waits, `queue_position` jobs are ahead of it."""

    job_id: str
    step: int
    steps: int
    preview: bytes = b""
    """A small PNG made from the latent, if the stream asked for previews."""
    queue_position: int = 0
    waits_again: str = ""
    """Why a job that had started waits again, for example because its worker is gone."""


Event = Accepted | Progress | Picture


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
    }


def view_of(message: common_pb2.Job, *, planned: bool = False) -> JobView:
    """planned: the job of a dry run, which has no id."""
    return JobView(**_fields(message, planned=planned))


def picture_of(message: common_pb2.Job, png: bytes) -> Picture:
    return Picture(**_fields(message), png=png)


def event_of(message: gateway_pb2.GenerateStreamResponse) -> Event:
    match message.WhichOneof("event"):
        case "accepted":
            it = message.accepted
            return Accepted(it.job_id, it.queue_position, plan_from_proto(it.plan))
        case "progress":
            step = message.progress
            return Progress(step.job_id, step.step, step.steps, step.preview, step.queue_position, step.waits_again)
        case "result":
            return picture_of(message.result.job, message.result.picture)
        case _:
            raise ValueError("an event that this version does not know")
