"""The client for programs with an event loop, and its reports of waiting for a gateway."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc

from protos import gateway_pb2
from protos.gateway_pb2_grpc import GatewayServiceStub
from shared.client.credentials import bearer, channel
from shared.client.image_parts import has_image, in_parts
from shared.client.large_results import ReadPart, whole, whole_or_failed
from shared.client.request_fields import RequestFields, checked_count, request_message
from shared.client.retry import Patience, countdown
from shared.client.views import (
    Accepted,
    Clip,
    Event,
    Failed,
    JobView,
    Picture,
    Progress,
    event_of,
    finished,
    images_of,
    picture_of,
    read_reply,
    view_of,
)
from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.domain.types import JobState, Modality
from shared.runtime import rpc
from shared.runtime.addresses import check_target

T = TypeVar("T")

IDEMPOTENCY_KEY = "idempotency-key"
MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Waiting:
    """A call found the gateway away or full, as `error` says. The client repeats the call after `delay_s` seconds."""

    error: AfterimageError
    delay_s: float


OnWait = Callable[[Waiting], None]
"""Function that is called when a wait begins, on the event loop (of a `Client`: in its own thread); must not block."""


class AsyncClient:
    """A client of one gateway.

    Every error is one of `shared.domain.errors`. A call that finds the gateway away or full is repeated for at most
    `retry_s` seconds, after the delay that the gateway asked for. All tries have one idempotency key, so no image is
    generated twice. Each interruption has `retry_s` seconds of its own: a call that waits through two restarts has them
    for each. A gateway that keeps failing gets them once. `on_wait` receives the reason and length of each wait.

        async with AsyncClient("localhost:50051") as client:
            picture = await client.generate("a red fox in the snow", steps=50, seed=7)
            picture.save("fox.png")
            print(picture.plan.source, picture.plan.start_step, picture.plan.reason)
    """

    def __init__(
        self,
        target: str,
        *,
        tenant: str = "default",
        retry_s: float = 30.0,
        api_key: str | None = None,
        tls_ca: str | None = None,
    ) -> None:
        """api_key: None reads AFTERIMAGE_API_KEY; the key decides the tenant. tls_ca: see `credentials.channel`.

        Raises ConfigurationError for a key that would cross a network in plain text."""
        self._target, self._tenant, self._retry_s = check_target(target), tenant, retry_s
        self._bearer = bearer(api_key)
        self._channel = channel(target, tls_ca, rpc.channel_options(MAX_MESSAGE_BYTES), api_key)
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
        """Return the image of `prompt`; `cache`, `scope` and `modality` may be given by name, as in `cache="off"`.

        timeout_s: seconds after which the client stops waiting, all tries together. The job goes on: the same
        idempotency key, or `get_picture` of its id, returns the image later. `deadline_s` is the limit of the job.
        """
        if fields.get("image") or fields.get("mask"):
            events = self.generate_stream(
                prompt, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
            )
            (picture,) = await _pictures(events)
            return picture
        request = gateway_pb2.GenerateRequest(request=request_message(prompt, **fields))
        metadata = self._metadata(idempotency_key or uuid.uuid4().hex)
        left_s = countdown(timeout_s)
        reply = await self._retried(
            lambda: _unary(self._stub.Generate, request, timeout_s=left_s(), metadata=metadata), on_wait
        )
        return await whole(read_reply(reply, lambda: picture_of(reply.job, reply.picture)), self._parts(left_s))

    async def generate_video(
        self,
        prompt: str,
        *,
        continue_from: str | None = None,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Clip:
        """Return the clip of `prompt`, with all that holds for `generate`; `frames` or `seconds` give its length.

        continue_from: job whose clip goes on (the field `continue_job`).

        For progress and previews: `generate_stream(prompt, modality="video", previews=True)`, which ends with the Clip.
        """
        fields |= {"modality": Modality.VIDEO, "continue_job": continue_from or fields.get("continue_job")}
        clip = await self.generate(
            prompt, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
        )
        if not isinstance(clip, Clip):
            raise ConfigurationError(f"the gateway at {self._target} generates no clips; it has another version")
        return clip

    async def generate_images(
        self,
        prompt: str,
        n: int,
        *,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> list[Picture]:
        """Return `n` images of `prompt`, of the seeds seed, seed + 1, …; no two start from the same root.

        The idempotency key covers all images. Raises ImagesFailedError, with the finished images, when some failed.
        """
        if fields.get("image") or fields.get("mask"):
            events = self.generate_stream(
                prompt, n=n, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
            )
            return sorted(await _pictures(events), key=lambda picture: picture.index)
        request = gateway_pb2.GenerateRequest(request=request_message(prompt, **fields), n=checked_count(n))
        metadata = self._metadata(idempotency_key or uuid.uuid4().hex)
        left_s = countdown(timeout_s)
        reply = await self._retried(
            lambda: _unary(self._stub.Generate, request, timeout_s=left_s(), metadata=metadata), on_wait
        )
        images, parts = read_reply(reply, lambda: images_of(reply)), self._parts(left_s)
        return finished([await whole_or_failed(one, parts) for one in images])

    async def generate_stream(
        self,
        prompt: str,
        *,
        n: int = 1,
        previews: bool = False,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[Event, None]:
        """Yield Accepted, then Progress events, then the Picture. A broken stream resumes at the job's current state.

        With `n` images, the events of all come as they happen, each with the `index` of its image. When some images
        failed, the stream ends with ImagesFailedError.

        async for event in client.generate_stream("a red fox in the snow"):
            match event:
                case Progress(): print(event.step, "of", event.steps)
                case Picture(): event.save("fox.png")
        """
        request = gateway_pb2.GenerateStreamRequest(
            request=request_message(prompt, **fields), previews=previews, n=checked_count(n)
        )
        metadata = self._metadata(idempotency_key or uuid.uuid4().hex)
        patience, now = self._patience(), asyncio.get_running_loop().time
        told = set[tuple[bool, int]]()
        """Images that were accepted (False) or ended (True)."""
        ended = list[Picture | Failed]()
        left_s = countdown(timeout_s)
        while True:
            begun, options = now(), {"timeout": left_s(), "metadata": metadata}
            sent = self._stub.GenerateFromImage(in_parts(request), **options) if has_image(request) else None
            call = sent or self._stub.GenerateStream(request, **options)
            try:
                async for message in call:
                    event = read_reply(message, partial(event_of, message))
                    if not isinstance(event, Progress):
                        kind = (not isinstance(event, Accepted), event.index)
                        if kind in told:  # by the stream before, which broke
                            continue
                        told.add(kind)
                    patience.renew()
                    if isinstance(event, Picture | Failed):
                        event = await whole_or_failed(event, self._parts(left_s))
                        ended.append(event)
                    if not isinstance(event, Failed):
                        yield event
                finished(ended)
                return
            except grpc.RpcError as error:
                lasted_s, begun = now() - begun, now()
                broken = await rpc.explained(rpc.from_rpc_error(error), self._target)
                await _wait(broken, patience.pause_s(broken, lasted_s, now() - begun), on_wait)
            finally:
                call.cancel()  # of a closed generator; grpc.aio leaves it open until a garbage collection

    async def plan(
        self, prompt: str, *, n: int = 1, timeout_s: float = 10.0, **fields: Unpack[RequestFields]
    ) -> list[JobView]:
        """Return the job that each of `n` images would get now, without an id. Nothing is generated, written or
        counted."""
        request = gateway_pb2.GenerateStreamRequest(request=request_message(prompt, **fields), n=checked_count(n))
        if has_image(request):
            stub, metadata = self._stub.PlanFromImage, self._metadata()
            reply = await self._retried(lambda: _unary(stub, in_parts(request), timeout_s=timeout_s, metadata=metadata))
        else:
            reply = await self._call(
                self._stub.Plan, gateway_pb2.PlanRequest(request=request.request, n=request.n), timeout_s
            )
        return read_reply(reply, lambda: [view_of(job, planned=True) for job in reply.jobs])

    async def get_job(self, job_id: str, *, timeout_s: float = 10.0) -> JobView:
        """Return the job's current state; NotFoundError for an unknown id."""
        reply = await self._call(self._stub.GetJob, gateway_pb2.GetJobRequest(job_id=job_id), timeout_s)
        return read_reply(reply, lambda: view_of(reply.job))

    async def get_picture(self, job_id: str, *, timeout_s: float = 10.0) -> Picture:
        """Return a finished job with its image; NotFoundError without an image: not finished, failed, or expired.

        timeout_s: limit of each try, and of all further parts of a large result together.
        """
        request = gateway_pb2.GetJobRequest(job_id=job_id, picture=True)
        reply = await self._call(self._stub.GetJob, request, timeout_s)
        parts = self._parts(countdown(timeout_s))
        return await whole(read_reply(reply, lambda: picture_of(reply.job, reply.picture)), parts)

    async def list_jobs(
        self, *, state: JobState | None = None, page_size: int = 50, page_token: str = "", timeout_s: float = 10.0
    ) -> tuple[list[JobView], str]:
        """Return one page of jobs, newest first, and the token of the next page (empty at the end)."""
        wanted = f"JOB_STATE_{state.name}" if state else "JOB_STATE_UNSPECIFIED"
        request = gateway_pb2.ListJobsRequest(state=wanted, page_size=page_size, page_token=page_token)
        reply = await self._call(self._stub.ListJobs, request, timeout_s)
        return read_reply(reply, lambda: ([view_of(job) for job in reply.jobs], reply.next_page_token))

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0) -> JobView:
        """Cancel the job between two steps; return the job, which may have ended before.

        `steps_run` and `timings` are the cost until then, if the worker reports it within two seconds; otherwise
        `get_job` returns them later.
        """
        reply = await self._call(self._stub.CancelJob, gateway_pb2.CancelJobRequest(job_id=job_id), timeout_s)
        return read_reply(reply, lambda: view_of(reply.job))

    async def erase(self, job_id: str, *, timeout_s: float = 60.0) -> None:
        """Erase the job with its prompt, its image and its cache entry, for good; NotFoundError if there is none.

        Raises UnavailableError when a store failed: the server erases what is left later, by itself. A second call
        raises NotFoundError once the job's row is gone.
        """
        reply = await self._call(self._stub.Erase, gateway_pb2.EraseRequest(job_id=job_id), timeout_s)
        if reply.erasure.left:
            raise UnavailableError(f"not all of job {job_id} is erased: {'; '.join(reply.erasure.left)}")

    def _parts(self, left_s: Callable[[], float]) -> ReadPart:
        """Return a function that reads parts of results. left_s: returns the seconds left for all parts together."""

        async def part(job_id: str, offset: int) -> bytes:
            request = gateway_pb2.GetJobRequest(job_id=job_id, picture=True, offset=offset)
            get, metadata = self._stub.GetJob, self._metadata()
            reply = await self._retried(lambda: _unary(get, request, timeout_s=left_s(), metadata=metadata))
            return read_reply(reply, lambda: bytes(reply.picture))

        return part

    # ---- retries ----

    def _metadata(self, idempotency_key: str = "") -> tuple[tuple[str, str], ...]:
        # without the header the tenant is the key's, or `default`
        tenant = (("tenant", self._tenant),) if self._tenant != "default" else ()
        key = ((IDEMPOTENCY_KEY, idempotency_key),) if idempotency_key else ()
        return (*tenant, *self._bearer, *key)

    async def _call(self, method: Callable[..., Any], request: Any, timeout_s: float) -> Any:
        return await self._retried(lambda: _unary(method, request, timeout_s=timeout_s, metadata=self._metadata()))

    async def _retried(self, attempt: Callable[[], Awaitable[T]], on_wait: OnWait | None = None) -> T:
        patience, now = self._patience(), asyncio.get_running_loop().time
        while True:
            begun = now()
            try:
                return await attempt()
            except AfterimageError as error:
                lasted_s, begun = now() - begun, now()
                broken = await rpc.explained(error, self._target)
                await _wait(broken, patience.pause_s(broken, lasted_s, now() - begun), on_wait)

    def _patience(self) -> Patience:
        return Patience(self._retry_s, self._random)


async def _pictures(events: AsyncGenerator[Event, None]) -> list[Picture]:
    return [event async for event in events if isinstance(event, Picture)]


async def _unary(method: Callable[..., Any], request: Any, *, timeout_s: float, metadata: Any) -> Any:
    try:
        return await method(request, timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        raise rpc.from_rpc_error(error) from error


async def _wait(error: AfterimageError, pause_s: float, on_wait: OnWait | None) -> None:
    if on_wait is not None:
        on_wait(Waiting(error, pause_s))
    await asyncio.sleep(pause_s)
