"""Calls that run under an API key: they end when the key does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import grpc


class OpenCalls:
    """The tasks of running calls, by the id of their key."""

    def __init__(self, ended: str) -> None:
        """ended: what a caller reads whose key ended during its call."""
        self._ended, self._tasks = ended, defaultdict[str, set[asyncio.Task[Any]]](set)
        self._stopped = set[asyncio.Task[Any]]()

    def keep(self, key_ids: Collection[str]) -> None:
        """End the calls of all other keys."""
        for key_id in self._tasks.keys() - set(key_ids):
            for task in self._tasks[key_id] - self._stopped:
                self._stopped.add(task)
                task.cancel()

    def under(self, key_id: str, handler: Any) -> Any:
        """Return a handler that does the same, until the key ends. Then the call ends as UNAUTHENTICATED."""
        if handler is None or handler.request_streaming:  # an unknown method; reflection
            return handler
        kinds: Any = {"request_deserializer": handler.request_deserializer}
        kinds |= {"response_serializer": handler.response_serializer}
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(key_id, handler.unary_stream), **kinds)
        return grpc.unary_unary_rpc_method_handler(self._single(key_id, handler.unary_unary), **kinds)

    def _single(self, key_id: str, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def answered(request: Any, context: Any) -> Any:
            with self._noted(key_id) as task:
                try:
                    return await answer(request, context)
                except asyncio.CancelledError:
                    await self._end(task, context)
                    raise

        return answered

    def _stream(self, key_id: str, answers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def answered(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._noted(key_id) as task:
                try:
                    async for one in answers(request, context):
                        yield one
                except asyncio.CancelledError:
                    await self._end(task, context)
                    raise

        return answered

    @contextmanager
    def _noted(self, key_id: str) -> Iterator[asyncio.Task[Any]]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[key_id].add(task)
        try:
            yield task
        finally:
            self._stopped.discard(task)
            self._tasks[key_id].discard(task)
            if not self._tasks[key_id]:
                del self._tasks[key_id]

    async def _end(self, task: asyncio.Task[Any], context: Any) -> None:
        """Answer why, if the key ended; a client that left is not told."""
        if task in self._stopped:
            task.uncancel()
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self._ended)
