"""The typed Python client: ask for pictures, watch them appear, look at jobs."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc

from protos import common_pb2, gateway_pb2
from protos.gateway_pb2_grpc import GatewayServiceStub
from shared.client.image_file import write
from shared.client.request_fields import RequestFields, request_message
from shared.client.retry import Patience, countdown
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.types import Job, JobState, Plan, Timings
from shared.runtime import rpc
from shared.runtime.addresses import check_target
from shared.runtime.rpc_types import job_from_proto, plan_from_proto, timings_from_proto

T = TypeVar("T")

IDEMPOTENCY_KEY = "idempotency-key"
MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class JobView:
    """A job as its client sees it."""

    job: Job
    model: str
    steps_run: int
    timings: Timings
    picture_bytes: int = 0
    picture_sha256: str = ""


@dataclass(frozen=True)
class Picture(JobView):
    """A finished job with its picture."""

    png: bytes = b""

    @property
    def plan(self) -> Plan:
        """Where it started, and why."""
        return self.job.plan

    @property
    def seed(self) -> int:
        """The seed it was drawn with, whoever chose it."""
        return self.job.request.seed

    def save(self, path: str | Path) -> None:
        """Write it as PNG, JPEG or WebP, by the name's ending, with prompt, seed, model, steps and job id beside it."""
        write(Path(path), self.png, self.job, self.model)


@dataclass(frozen=True)
class Accepted:
    """First event of a stream: the job exists, and will survive a restart."""

    job_id: str
    queue_position: int
    plan: Plan


@dataclass(frozen=True)
class Progress:
    """`step` of `steps` are behind the picture; while it waits, `queue_position` jobs are ahead."""

    job_id: str
    step: int
    steps: int
    preview: bytes = b""
    """A small PNG made from the latent, when asked for."""
    queue_position: int = 0
    waits_again: str = ""
    """Why a job that was begun waits again: its worker is gone, say."""


Event = Accepted | Progress | Picture


@dataclass(frozen=True)
class Waiting:
    """A call found the gateway away or full (`error` says which) and is made again after `delay_s` seconds."""

    error: AfterimageError
    delay_s: float


OnWait = Callable[[Waiting], None]
"""Is told of each such wait as it begins, on the event loop (of a `Client`: in its own thread); must not block."""


class AsyncClient:
    """Talks to a gateway.

    Every error is one of `shared.domain.errors`. A call that finds the gateway away or full is tried again, after the
    delay
    the gateway asked for, for at most `retry_s` seconds, under one idempotency key: it never draws twice. They count
    from break to break: a picture that is waited for through two restarts has as long for each, and one that the
    gateway has no way to give has it once. `on_wait` is told why a picture is waited for so, and for how long.

        async with AsyncClient("localhost:50051") as client:
            picture = await client.generate("a red fox in the snow", steps=50, seed=7)
            picture.save("fox.png")
            print(picture.plan.source, picture.plan.start_step, picture.plan.reason)
    """

    def __init__(self, target: str, *, tenant: str = "default", retry_s: float = 30.0) -> None:
        self._target, self._tenant, self._retry_s = check_target(target), tenant, retry_s
        self._channel = grpc.aio.insecure_channel(target, options=rpc.channel_options(MAX_MESSAGE_BYTES))
        self._stub: Any = GatewayServiceStub(self._channel)
        self._random = random.Random()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def generate(
        self,
        prompt: str,
        *,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Picture:
        """The picture of `prompt`; `cache`, `scope` and `modality` may be given by name, e.g. `cache="off"`.

        timeout_s ends the waiting, however often it was begun again, not the drawing: the job goes on, and its picture
        is there under the same idempotency key, or as `get_picture` of its id. A deadline for the drawing itself is
        `deadline_s`.
        """
        request = gateway_pb2.GenerateRequest(request=request_message(prompt, **fields))
        metadata = self._metadata(idempotency_key or uuid.uuid4().hex)
        left_s = countdown(timeout_s)
        reply = await self._retried(
            lambda: _unary(self._stub.Generate, request, timeout_s=left_s(), metadata=metadata), on_wait
        )
        return _read(reply, lambda: _picture(reply.job, reply.picture))

    async def generate_stream(
        self,
        prompt: str,
        *,
        previews: bool = False,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[Event, None]:
        """Accepted, then Progress, then the Picture. Broken off, it is taken up again where the job is.

        async for event in client.generate_stream("a red fox in the snow"):
            match event:
                case Progress(): print(event.step, "of", event.steps)
                case Picture(): event.save("fox.png")
        """
        request = gateway_pb2.GenerateStreamRequest(request=request_message(prompt, **fields), previews=previews)
        metadata = self._metadata(idempotency_key or uuid.uuid4().hex)
        patience, accepted, now = self._patience(), False, asyncio.get_running_loop().time
        left_s = countdown(timeout_s)
        while True:
            begun = now()
            try:
                async for message in self._stub.GenerateStream(request, timeout=left_s(), metadata=metadata):
                    event = _read(message, partial(_event, message))
                    if not (accepted and isinstance(event, Accepted)):
                        patience.renew()
                        yield event
                    accepted = accepted or isinstance(event, Accepted)
                return
            except grpc.RpcError as error:
                broken = await rpc.explained(rpc.from_rpc_error(error), self._target)
                await _wait(broken, patience.pause_s(broken, now() - begun), on_wait)

    async def get_job(self, job_id: str, *, timeout_s: float = 10.0) -> JobView:
        """The job as it is now; NotFoundError when there is none."""
        reply = await self._call(self._stub.GetJob, gateway_pb2.GetJobRequest(job_id=job_id), timeout_s)
        return _read(reply, lambda: _view(reply.job))

    async def get_picture(self, job_id: str, *, timeout_s: float = 10.0) -> Picture:
        """A finished job with its picture; NotFoundError when it has none (yet, or any more)."""
        request = gateway_pb2.GetJobRequest(job_id=job_id, picture=True)
        reply = await self._call(self._stub.GetJob, request, timeout_s)
        return _read(reply, lambda: _picture(reply.job, reply.picture))

    async def list_jobs(
        self, *, state: JobState | None = None, page_size: int = 50, page_token: str = "", timeout_s: float = 10.0
    ) -> tuple[list[JobView], str]:
        """Newest first, and the token of the next page (empty at the end)."""
        wanted = f"JOB_STATE_{state.name}" if state else "JOB_STATE_UNSPECIFIED"
        request = gateway_pb2.ListJobsRequest(state=wanted, page_size=page_size, page_token=page_token)
        reply = await self._call(self._stub.ListJobs, request, timeout_s)
        return _read(reply, lambda: ([_view(job) for job in reply.jobs], reply.next_page_token))

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0) -> JobView:
        """Cancelled, or as it had already ended; takes effect between two steps.

        `steps_run` and `timings` say what it had cost by then, where its worker tells within two seconds; else
        `get_job` has them later.
        """
        reply = await self._call(self._stub.CancelJob, gateway_pb2.CancelJobRequest(job_id=job_id), timeout_s)
        return _read(reply, lambda: _view(reply.job))

    # ---- retries ----

    def _metadata(self, idempotency_key: str = "") -> tuple[tuple[str, str], ...]:
        tenant = (("tenant", self._tenant),)
        return (*tenant, (IDEMPOTENCY_KEY, idempotency_key)) if idempotency_key else tenant

    async def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        return await self._retried(lambda: _unary(method, request, timeout_s=timeout_s, metadata=self._metadata()))

    async def _retried(self, attempt: Callable[[], Awaitable[T]], on_wait: OnWait | None = None) -> T:
        patience, now = self._patience(), asyncio.get_running_loop().time
        while True:
            begun = now()
            try:
                return await attempt()
            except AfterimageError as error:
                broken = await rpc.explained(error, self._target)
                await _wait(broken, patience.pause_s(broken, now() - begun), on_wait)

    def _patience(self) -> Patience:
        return Patience(self._retry_s, self._random)


class Client:
    """`AsyncClient` for programs without an event loop; usable from several threads.

    with Client("localhost:50051") as client:
        client.generate("a red fox in the snow").save("fox.png")
    """

    def __init__(self, target: str, *, tenant: str = "default", retry_s: float = 30.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="afterimage-client", daemon=True)
        self._thread.start()
        self._client: AsyncClient = self._run(_made(target, tenant, retry_s))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(
        self,
        prompt: str,
        *,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Picture:
        """See AsyncClient.generate."""
        drawn = self._client.generate(
            prompt, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
        )
        return self._run(drawn)

    def generate_stream(
        self,
        prompt: str,
        *,
        previews: bool = False,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Iterator[Event]:
        """See AsyncClient.generate_stream."""
        events = self._client.generate_stream(
            prompt,
            previews=previews,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
            on_wait=on_wait,
            **fields,
        )
        while (event := self._run(_next(events))) is not None:
            yield event

    def get_job(self, job_id: str) -> JobView:
        return self._run(self._client.get_job(job_id))

    def get_picture(self, job_id: str) -> Picture:
        return self._run(self._client.get_picture(job_id))

    def list_jobs(
        self, *, state: JobState | None = None, page_size: int = 50, page_token: str = ""
    ) -> tuple[list[JobView], str]:
        return self._run(self._client.list_jobs(state=state, page_size=page_size, page_token=page_token))

    def cancel(self, job_id: str) -> JobView:
        return self._run(self._client.cancel(job_id))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _unary(method: Callable[..., Any], request: Any, *, timeout_s: float, metadata: Any) -> Any:
    try:
        return await method(request, timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        raise rpc.from_rpc_error(error) from error


async def _wait(error: AfterimageError, pause_s: float, on_wait: OnWait | None) -> None:
    if on_wait is not None:
        on_wait(Waiting(error, pause_s))
    await asyncio.sleep(pause_s)


async def _made(target: str, tenant: str, retry_s: float) -> AsyncClient:
    return AsyncClient(target, tenant=tenant, retry_s=retry_s)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


def _read(reply: Any, read: Callable[[], T]) -> T:
    """What a reply says; ConfigurationError where it cannot be read (gRPC gives None for bytes that are no message)."""
    try:
        if reply is not None:
            return read()
        said = "its reply is no message of ours"
    except (ValueError, KeyError, TypeError) as error:
        said = str(error)
    raise ConfigurationError(f"another service, or another version of this one, listens there ({said})")


def _fields(message: common_pb2.Job) -> dict[str, Any]:
    if not message.id:
        raise ValueError("a job without an id")
    return {
        "job": job_from_proto(message),
        "model": message.model,
        "steps_run": message.steps_run,
        "timings": timings_from_proto(message.timings),
        "picture_bytes": message.picture_bytes,
        "picture_sha256": message.picture_sha256,
    }


def _view(message: common_pb2.Job) -> JobView:
    return JobView(**_fields(message))


def _picture(message: common_pb2.Job, png: bytes) -> Picture:
    return Picture(**_fields(message), png=png)


def _event(message: gateway_pb2.GenerateStreamResponse) -> Event:
    match message.WhichOneof("event"):
        case "accepted":
            it = message.accepted
            return Accepted(it.job_id, it.queue_position, plan_from_proto(it.plan))
        case "progress":
            step = message.progress
            return Progress(step.job_id, step.step, step.steps, step.preview, step.queue_position, step.waits_again)
        case "result":
            return _picture(message.result.job, message.result.picture)
        case _:
            raise ValueError("an event that this version does not know")
