"""Streams of images: Server-Sent Events with OpenAI's names."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from services.gateway.http.answers import ImageAnswers, failure, origin
from services.gateway.http.errors import HttpError, described
from services.gateway.http.requests import ignored_of
from shared.client.views import Failed, Picture, Progress, event_of
from shared.domain.errors import AfterimageError

HEARTBEAT_S = 15.0
"""Seconds of silence after which a stream sends a comment, so that no proxy closes it."""
EVENTS = "text/event-stream"
ENDED = "e"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Partials:
    """The previews of one image that a stream sends: as many as asked for, evenly over its steps."""

    def __init__(self, wanted: int, sent: int = 0) -> None:
        """sent: previews that an earlier connection has sent."""
        self._wanted, self._first = wanted, -1
        self.sent = sent

    def take(self, progress: Progress) -> bool:
        """Return whether to send this preview."""
        if self._first < 0 and progress.step:
            self._first = progress.step - 1
        if not progress.preview or self.sent >= self._wanted:
            return False
        done = (progress.step - self._first) / max(progress.steps - self._first, 1)
        if done < (self.sent + 1) / (self._wanted + 1):
            return False
        self.sent += 1
        return True


class Received:
    """The events that a stream's client has received, by image. Each event's id says it, so any replica can go on.

    An id has one part per image, joined by dots: the number of its previews, or `e` when it has ended.
    """

    def __init__(self, images: int, last_event_id: str = "") -> None:
        """last_event_id: id of the last event of an earlier connection; empty: none. Raises HttpError."""
        self._parts = last_event_id.split(".") if last_event_id else ["0"] * images
        if len(self._parts) != images or not all(part in ("0", "1", "2", "3", ENDED) for part in self._parts):
            rule = f"Last-Event-ID: must be the id of an event of this stream of {images} images"
            raise HttpError(400, f"{rule} (got {last_event_id[:100]!r})", "Last-Event-ID", "invalid_parameter")

    @property
    def images(self) -> int:
        return len(self._parts)

    @property
    def id(self) -> str:
        return ".".join(self._parts)

    def previews(self, index: int) -> int:
        """Return the number of previews received."""
        return 0 if self.ended(index) else int(self._parts[index])

    def ended(self, index: int) -> bool:
        return self._parts[index] == ENDED

    def note(self, index: int, part: str) -> str:
        """Note an event of this image, and return the event's id."""
        self._parts[index] = part
        return self.id


async def image_events(
    responses: AsyncGenerator[Any, None], answers: ImageAnswers, received: Received
) -> AsyncGenerator[bytes, None]:
    """Yield the events of all images that the client has not received; empty bytes for what OpenAI's stream has no
    event for."""
    partials: dict[int, Partials] = {}
    try:
        async for message in responses:
            match event := event_of(message):
                case Progress() | Picture() | Failed() if received.ended(event.index):
                    yield b""
                case Progress():
                    wanted, sent = answers.fields.partial_images or 0, received.previews(event.index)
                    known = partials.setdefault(event.index, Partials(wanted, sent))
                    if known.take(event):
                        body = await _partial(event, known.sent - 1, answers)
                        yield _with_id(received.note(event.index, str(known.sent)), body)
                case Picture():
                    body = await _completed(event, answers)
                    yield _with_id(received.note(event.index, ENDED), body)
                case Failed():
                    body = _event(f"{answers.event}.failed", failure=failure(event))
                    yield _with_id(received.note(event.index, ENDED), body)
                case _:
                    yield b""
    except AfterimageError as error:
        yield error_event(error)


def error_event(error: Exception) -> bytes:
    """Return the last event of a stream that ends early."""
    return _event("error", error=described(error)[1])


async def _partial(progress: Progress, number: int, answers: ImageAnswers) -> bytes:
    image = await answers.base64(progress.preview)
    told = {"index": progress.index, "job_id": progress.job_id, "step": progress.step, "steps": progress.steps}
    return _event(
        f"{answers.event}.partial_image",
        b64_json=image,
        partial_image_index=number,
        created_at=int(time.time()),
        output_format=answers.output,
        background="opaque",
        afterimage=told,
    )


async def _completed(picture: Picture, answers: ImageAnswers) -> bytes:
    return _event(
        f"{answers.event}.completed",
        **await answers.image(picture) | {"afterimage": origin(picture) | {"ignored": ignored_of(answers.fields)}},
        created_at=int(time.time()),
        size=str(picture.job.request.size),
        quality=answers.fields.quality or "auto",
        output_format=answers.output,
        background="opaque",
    )


def _with_id(event_id: str, event: bytes) -> bytes:
    return f"id: {event_id}\n".encode() + event


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


async def with_heartbeats(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events, and a comment after each HEARTBEAT_S without one. Closes `events` in the end."""
    upcoming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=HEARTBEAT_S)
            if not done:
                yield b": waiting\n\n"
                continue
            try:
                event = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = asyncio.ensure_future(anext(events))
            if event:
                yield event
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        await events.aclose()
