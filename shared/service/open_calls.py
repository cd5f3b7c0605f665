"""Calls that run under an API key: they end when the key does, and each tenant has so many open at once. A call whose
answer is not sent yet is open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc

from shared.domain.errors import AfterimageError, PermissionDeniedError, RateLimitError, UnauthenticatedError
from shared.domain.identity import ApiKey
from shared.runtime import rpc, rpc_server

Within = Callable[[Any], AbstractContextManager[None]]
"""Takes the gRPC context of a call, and returns what the call runs in; it may refuse."""
_REFUSALS = (PermissionDeniedError, RateLimitError, UnauthenticatedError)


class OpenCalls:
    """The tasks of running calls with their keys, by tenant."""

    def __init__(
        self,
        ended: str,
        most: Callable[[str], int | None] = lambda tenant: None,
        refused: Callable[[RateLimitError, str], None] = lambda error, call: None,
    ) -> None:
        """ended: what a caller reads whose key ended during its call; most: returns a tenant's calls that may be open
        at once; refused: called with the error and the call's name for each call beyond."""
        self._ended, self._tasks = ended, defaultdict[str, dict[asyncio.Task[Any], ApiKey]](dict)
        self._unread = Counter[str]()
        """Calls, by tenant, whose handlers have returned, and whose answers wait until their clients read them."""
        self._most, self._refused = most, refused
        self._stopped = set[asyncio.Task[Any]]()

    def keep(self, live: Mapping[str, ApiKey]) -> None:
        """End the calls of keys that are not live any more. live: keys by id; tokens end by their own time."""
        now = time.time()
        for task, key in [one for tasks in self._tasks.values() for one in tasks.items()]:
            last = live.get(key.id) if key.id else key
            if last is None or last.expired(now):
                self._end(task)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if task not in self._stopped:
            self._stopped.add(task)
            task.cancel()

    def under(self, key: ApiKey, handler: Any, call: str) -> Any:
        """Return a handler that does the same, until the key ends. Then the call ends as UNAUTHENTICATED."""
        return within(lambda _: self.noted(key, call), handler)

    @contextmanager
    def noted(self, key: ApiKey, call: str) -> Iterator[None]:
        """End the block when the key ends. Raises UnauthenticatedError then; a client that left cancels as before.

        Raises RateLimitError at the beginning if the tenant has too many calls open. call: its name, for the log.
        """
        task, tenant = asyncio.current_task(), key.principal.tenant
        assert task is not None
        self._check(tenant, call)
        self._tasks[tenant][task] = key
        timer = None
        if key.expires_at is not None:
            timer = asyncio.get_running_loop().call_later(key.expires_at - time.time(), self._end, task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._stopped:
                raise
            task.uncancel()
            raise UnauthenticatedError(self._ended) from None
        finally:
            if timer is not None:
                timer.cancel()
            self._stopped.discard(task)
            del self._tasks[tenant][task]
            if not self._tasks[tenant]:
                del self._tasks[tenant]
            self._unread[tenant] += 1
            task.add_done_callback(lambda _: self._read(tenant))

    def _read(self, tenant: str) -> None:
        self._unread[tenant] -= 1
        self._unread += Counter()  # without those that have none

    def _check(self, tenant: str, call: str) -> None:
        """Raise RateLimitError if the tenant has as many calls open as it may."""
        most = self._most(tenant)
        if most is not None and len(self._tasks.get(tenant, ())) + self._unread[tenant] >= most:
            said = f"this tenant has {most} calls open, which is its limit (tenant_limits); end one, and ask again"
            error = RateLimitError(said, retry_after_s=1.0)
            self._refused(error, call)
            raise error


def within(entered: Within, handler: Any) -> Any:
    """Return a handler that does the same inside of `entered`, whose refusal is the call's status."""
    if handler is None:  # an unknown method
        return handler
    kind = "_".join("stream" if one else "unary" for one in (handler.request_streaming, handler.response_streaming))
    answer, around = getattr(handler, kind), _stream if handler.response_streaming else _single
    made: Any = getattr(grpc, f"{kind}_rpc_method_handler")
    return made(around(entered, answer), handler.request_deserializer, handler.response_serializer)


async def _refuse(error: AfterimageError, request: Any, context: Any) -> None:
    """End the call, once what the client still sends is read."""
    if isinstance(request, AsyncIterator):
        await rpc_server.read_on(request)
    rpc_server.end_with(rpc.to_status(error), context)


def _single(entered: Within, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def answered(request: Any, context: Any) -> Any:
        try:
            with entered(context):
                return await answer(request, context)
        except _REFUSALS as error:
            await _refuse(error, request, context)
            return None

    return answered


def _stream(entered: Within, answers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def answered(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with entered(context):
                async for one in answers(request, context):
                    yield one
        except _REFUSALS as error:
            await _refuse(error, request, context)

    return answered
