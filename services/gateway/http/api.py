"""What the HTTP handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from protos import common_pb2 as pb
from protos import gateway_pb2
from services.gateway.caller import Caller
from services.gateway.erasing import Eraser
from services.gateway.http.errors import HttpError
from services.gateway.http.fields import ErrorAnswer
from services.gateway.http.identity import Callers, caller, principal
from services.gateway.http.pictures import Conversions
from services.gateway.http.signed_urls import Signer
from services.gateway.pending_calls import Calls, PendingCall
from services.gateway.served_models import Models
from services.gateway.uploads import Receiving
from shared.runtime.settings import Settings
from shared.service.readiness import Readiness

T = TypeVar("T")
HELD = "afterimage.held"
"""Key of a request's scope: the ExitStack that frees the memory counted for its upload."""


@dataclass(frozen=True)
class Api:
    """The gateway, as its HTTP handlers see it."""

    settings: Settings
    calls: Calls
    models: Models
    jobs: Any
    """Jobs of the catalog."""
    callers: Callers
    receiving: Receiving
    eraser: Eraser
    signer: Signer
    readiness: Readiness
    started_at: float
    """Unix seconds."""
    conversions: Conversions = field(default_factory=Conversions)

    async def accept(
        self,
        request: Request,
        calls: Sequence[PendingCall],
        message: pb.Request,
        who: Caller,
        *,
        durable: bool,
        previews: bool = False,
    ) -> None:
        """Accept the request's jobs. Its image is stored then, leaves the memory, and makes room for others."""
        await self.calls.accept(calls, message, who, durable=durable, previews=previews)
        for part in ("image", "mask"):
            message.ClearField(part)
        if held := request.scope.get(HELD):
            held.close()

    async def erase(self, request: Request, job_id: str) -> None:
        """Erase a job of the caller, or its entry. Raises what `Eraser.erase` raises, and HttpError when a store
        failed."""
        who, client = principal(request.scope), request.client
        actor = f"{who.tenant}/{who.subject}" if who.subject else f"anonymous at {client.host if client else 'unknown'}"
        found = await self.eraser.erase(gateway_pb2.EraseRequest(job_id=job_id), caller(request), who, actor)
        if found.left:
            # sent again, it would be answered that there is no such job
            said = f"not all of job {job_id} is erased yet, and the server goes on by itself: {'; '.join(found.left)}"
            raise HttpError(503, said, code="unavailable", kind="server_error")


class ClientGoneError(Exception):
    """The client left; nobody reads an answer."""


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the part of the OpenAPI document about answers that are no success; some statuses any request may get."""
    return {status: {"model": ErrorAnswer} for status in sorted({400, 403, 500, *statuses})}


READS = refusals(401, 404, 429, 503)
ERASES = READS | refusals(408, 413, 504)
GENERATES = refusals(401, 404, 408, 409, 413, 429, 503, 504)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, and cancel it when the client leaves. Raises ClientGoneError then."""
    running, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientGoneError
        return running.result()
    finally:
        for one in (running, gone):
            one.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
