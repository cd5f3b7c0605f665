"""Calls between the services of one process: straight to the handler, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

Metadata = Sequence[tuple[str, str]]


class Answering(Protocol):
    """A server of this process, whose handlers answer without a connection."""

    direct: set[asyncio.Task[bytes]]
    """Calls in progress; a stop waits for them, then cancels them."""

    def handler(self, method: str) -> Any:
        """Return the handler of `/package.Service/Method`; None for an unknown one, or while the server is down."""
        ...


class DirectChannel:
    """A channel to services of this process: a unary call goes to its handler, everything else over the socket.

    Both sides behave as over the socket. The handler gets a copy of the message, and runs in a task and a context of
    its own; it is cancelled with its call, and when the call's time is over. A message has `most` bytes at most.
    """

    def __init__(self, channel: grpc.aio.Channel, server: Answering, most: int) -> None:
        self._channel, self._server, self._most = channel, server, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Any, **others: Any
    ) -> Any:
        remote = self._channel.unary_unary(method, request_serializer, response_deserializer, **others)
        return _Call(self._server, method.encode(), self._most, request_serializer, response_deserializer, remote)


@dataclass(frozen=True, slots=True)
class _Call:
    """One method of a stub."""

    server: Answering
    _method: bytes
    """The name as gRPC's own stubs keep it; spans are called after it."""
    most: int
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]
    remote: Callable[..., Awaitable[Any]]

    async def __call__(self, request: Any, *, timeout: float | None = None, metadata: Metadata = ()) -> Any:
        """Return the reply; None for one that cannot be parsed, as grpc.aio does.

        Raises grpc.aio.AioRpcError with the handler's status, DEADLINE_EXCEEDED, UNAVAILABLE, or RESOURCE_EXHAUSTED for
        a message larger than the limit.
        """
        handler = self.server.handler(self._method.decode())
        if handler is None:  # the socket has the fitting error
            return await self.remote(request, timeout=timeout, metadata=metadata or None)
        call, calls = CallContext(metadata), self.server.direct
        answering = _answer(handler, self._limited(self.pack(request), call), call)
        task = asyncio.get_running_loop().create_task(answering, context=Context())
        calls.add(task)
        task.add_done_callback(calls.discard)
        try:
            await asyncio.wait((task,), timeout=timeout)
        finally:
            task.cancel()  # no effect once it is done
        if not task.done():
            raise call.error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if task.cancelled():
            raise call.error(grpc.StatusCode.UNAVAILABLE, "the service ended the call")
        if (wrong := task.exception()) is not None:
            raise call.error(grpc.StatusCode.UNKNOWN, f"the reply cannot be sent: {type(wrong).__name__}")
        if call.code is not grpc.StatusCode.OK:
            raise call.error(call.code, call.details)
        reply = self._limited(task.result(), call)
        try:
            return self.unpack(reply)
        except DecodeError:
            return None

    def _limited(self, message: bytes, call: CallContext) -> bytes:
        if len(message) > self.most:
            said = f"Message larger than max ({len(message)} vs. {self.most})"  # gRPC's words
            raise call.error(grpc.StatusCode.RESOURCE_EXHAUSTED, said)
        return message


async def _answer(handler: Any, message: bytes, call: CallContext) -> bytes:
    """Return the handler's reply as it is sent; empty where the call ends with an error."""
    reply = await handler.unary_unary(handler.request_deserializer(message), call)
    return handler.response_serializer(reply) if call.code is grpc.StatusCode.OK else b""


class CallContext:
    """The side of a call that its handler sees, as grpc.aio's ServicerContext."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.code, self.details = grpc.StatusCode.OK, ""
        self._trailing: Metadata = ()

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return "unix:"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = metadata

    def error(self, code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
        """Return the error that the caller gets."""
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*self._trailing), details)
