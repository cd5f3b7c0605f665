"""Calls that run under an API key: they end when the key does, and each tenant has so many open at once."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc

from shared.domain.errors import PermissionDeniedError, RateLimitError, UnauthenticatedError
from shared.domain.identity import ApiKey
from shared.runtime import rpc, rpc_server

Within = Callable[[Any], AbstractContextManager[None]]
"""Takes the gRPC context of a call, and returns what the call runs in; it may refuse."""
_REFUSALS = (PermissionDeniedError, RateLimitError, UnauthenticatedError)


class OpenCalls:
    """The tasks of running calls, by the id of their key."""

    def __init__(
        self,
        ended: str,
        most: Callable[[str], int | None] = lambda tenant: None,
        refused: Callable[[RateLimitError, str], None] = lambda error, call: None,
    ) -> None:
        """ended: what a caller reads whose key ended during its call; most: returns a tenant's calls that may be open
        at once; refused: hears of the calls beyond."""
        self._ended, self._tasks = ended, defaultdict[str, set[asyncio.Task[Any]]](set)
        self._most, self._refused = most, refused
        self._stopped = set[asyncio.Task[Any]]()
        self._live: Mapping[str, ApiKey] = {}
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, live: Mapping[str, ApiKey]) -> None:
        """End the calls of all other keys now, and those of a live key once it expires."""
        self._live = live
        self._end_expired()

    def _end_expired(self) -> None:
        now = time.time()
        for key_id in [*self._tasks]:
            if (key := self._live.get(key_id)) is None or key.expired(now):
                for task in self._tasks[key_id] - self._stopped:
                    self._stopped.add(task)
                    task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [key.expires_at for key in self._live.values() if key.expires_at is not None]
        if after := [end for end in ends if end > now]:
            self._timer = asyncio.get_running_loop().call_later(min(after) - now, self._end_expired)

    def close(self) -> None:
        """Watch no key any longer."""
        if self._timer is not None:
            self._timer.cancel()

    def under(self, key_id: str, handler: Any) -> Any:
        """Return a handler that does the same, until the key ends. Then the call ends as UNAUTHENTICATED."""
        return within(lambda _: self.noted(key_id), handler)

    @contextmanager
    def noted(self, key_id: str) -> Iterator[None]:
        """End the block when the key ends. Raises UnauthenticatedError then; a client that left cancels as before.

        Raises RateLimitError at the beginning if the tenant has too many calls open.
        """
        task = asyncio.current_task()
        assert task is not None
        self._check(key_id)
        self._tasks[key_id].add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._stopped:
                raise
            task.uncancel()
            raise UnauthenticatedError(self._ended) from None
        finally:
            self._stopped.discard(task)
            self._tasks[key_id].discard(task)
            if not self._tasks[key_id]:
                del self._tasks[key_id]

    def _check(self, key_id: str) -> None:
        """Raise RateLimitError if the key's tenant has as many calls open as it may."""
        tenant = self._tenant_of(key_id)
        if (most := self._most(tenant)) is None:
            return
        if sum(len(tasks) for other, tasks in self._tasks.items() if self._tenant_of(other) == tenant) >= most:
            said = f"this tenant has {most} calls open, which is its limit (tenant_limits); end one, and ask again"
            error = RateLimitError(said, retry_after_s=1.0)
            self._refused(error, f"one of {tenant}")
            raise error

    def _tenant_of(self, key_id: str) -> str:
        key = self._live.get(key_id)
        return "" if key is None else key.principal.tenant


def within(entered: Within, handler: Any) -> Any:
    """Return a handler that does the same inside of `entered`, whose refusal is the call's status."""
    if handler is None:  # an unknown method
        return handler
    kind = "_".join("stream" if one else "unary" for one in (handler.request_streaming, handler.response_streaming))
    answer, around = getattr(handler, kind), _stream if handler.response_streaming else _single
    if not (inspect.isasyncgenfunction(answer) or inspect.iscoroutinefunction(answer)):  # reflection
        return handler
    made: Any = getattr(grpc, f"{kind}_rpc_method_handler")
    return made(around(entered, answer), handler.request_deserializer, handler.response_serializer)


def _single(entered: Within, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    async def answered(request: Any, context: Any) -> Any:
        try:
            with entered(context):
                return await answer(request, context)
        except _REFUSALS as error:
            rpc_server.end_with(rpc.to_status(error), context)
            return None

    return answered


def _stream(entered: Within, answers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def answered(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with entered(context):
                async for one in answers(request, context):
                    yield one
        except _REFUSALS as error:
            rpc_server.end_with(rpc.to_status(error), context)

    return answered
