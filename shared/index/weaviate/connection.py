"""The connection to a Weaviate server: its address, the connect on first use, and the conversion of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weaviate import WeaviateAsyncClient
from weaviate.auth import Auth
from weaviate.config import AdditionalConfig, GrpcConfig, Timeout
from weaviate.connect import ConnectionParams
from weaviate.exceptions import WeaviateBaseError

from shared.domain.errors import ConfigurationError, UnavailableError

_CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
"""Backoff limits: the client finds a restarted server within a second (the default can take two minutes)."""


MEET_S = 10.0
"""Time limit of connecting in seconds; connecting continues if the caller gives up."""
_SERVICE = "weaviate.v1.Weaviate"
"""Service name for the health check: another server behind a wrong port, such as a gateway, does not know it."""


def place_of(url: str) -> ConnectionParams:
    """Parse `weaviate://host:port?grpc_port=50051`; `secure=true` selects TLS.

    Raise ConfigurationError for anything else; the error never quotes the URL, which may hold a key.
    """
    try:
        parts = urlsplit(url)
        wish = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        host, secure = parts.hostname or "", wish.pop("secure", "false") == "true"
        grpc_port = int(wish.pop("grpc_port", "50051"))
        if wish:
            raise ValueError(f"unknown parameters {sorted(wish)}")
        return ConnectionParams.from_params(host, parts.port or 8080, secure, host, grpc_port, secure)
    except ValueError as error:
        raise ConfigurationError("index_url: must be weaviate://host:port?grpc_port=50051&secure=false") from error


def client_of(url: str, *, connect_s: float, read_s: float, write_s: float) -> WeaviateAsyncClient:
    """Return a client for `place_of(url)`; `weaviate://:KEY@host:port` sets an API key."""
    at = place_of(url)
    password = urlsplit(url).password
    return WeaviateAsyncClient(
        at,
        auth_client_secret=Auth.api_key(unquote(password)) if password else None,
        additional_config=AdditionalConfig(
            timeout=Timeout(init=connect_s, query=read_s, insert=write_s),
            grpc_config=GrpcConfig(channel_options=_CHANNEL),
            trust_env=at.http.secure,  # SSL_CERT_FILE, for an authority of one's own
        ),
        skip_init_checks=True,  # the checks would ask a package registry for new versions
    )


class Connection:
    """One connection for all callers, made again after a failure."""

    def __init__(self, client: WeaviateAsyncClient, at: ConnectionParams) -> None:
        self.client = client
        self._http = f"{at.http.host}:{at.http.port}"
        self._grpc, self._secure = f"{at.grpc.host}:{at.grpc.port}", at.grpc.secure
        self._connecting: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def within(self, limit_s: float, what: str) -> AsyncIterator[None]:
        """Connect and run the body; raise UnavailableError, naming `what`, if that takes longer than `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._connect()
                yield
        except TimeoutError as error:
            raise UnavailableError(
                f"index: {what}: no answer within {limit_s:g} s (HTTP at {self._http}, gRPC at {self._grpc})",
                retry_after_s=1.0,
                outside=f"index: {what}: no answer within {limit_s:g} s",
            ) from error
        except (WeaviateBaseError, httpx.HTTPError, OSError) as error:
            said = str(error) or type(error).__name__
            away = f"index: {what}: the index server does not answer"
            raise UnavailableError(f"index: {what}: {said[:300]}", retry_after_s=1.0, outside=away) from error

    async def _connect(self) -> None:
        """Connect in a shared task that continues if a caller gives up.

        Connecting may take longer than a search may wait. If each caller restarted it, no attempt would ever finish.
        """
        if self._connecting is None or _failed(self._connecting):
            self._connecting = asyncio.create_task(self._met())
            self._connecting.add_done_callback(_failed)  # retrieves the error even if no caller waits any more
        await asyncio.shield(self._connecting)

    async def _met(self) -> None:
        try:
            async with asyncio.timeout(MEET_S):
                await self.client.connect()
                await self._meet_grpc()
        except BaseException:
            await self.client.close()  # half open
            raise

    async def _meet_grpc(self) -> None:
        """Check gRPC, which searches use, because the client checks only HTTP; raise ConnectionError if it fails."""
        made = grpc.aio.secure_channel if self._secure else grpc.aio.insecure_channel
        given = (grpc.ssl_channel_credentials(),) if self._secure else ()
        async with made(self._grpc, *given) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=_SERVICE))
            except grpc.aio.AioRpcError as error:
                said = f"{error.code().name}: {(error.details() or '')[:120]}"
                raise ConnectionError(
                    f"HTTP at {self._http} answers, but its gRPC does not at {self._grpc} ({said}); "
                    "check grpc_port in index_url"
                ) from error

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self.client.close()


def _failed(connecting: asyncio.Task[None]) -> bool:
    return connecting.done() and (connecting.cancelled() or connecting.exception() is not None)
