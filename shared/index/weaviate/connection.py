"""The connection to a Weaviate server: where it is, made when first needed, and its errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
from weaviate import WeaviateAsyncClient
from weaviate.auth import Auth
from weaviate.config import AdditionalConfig, GrpcConfig, Timeout
from weaviate.connect import ConnectionParams
from weaviate.exceptions import WeaviateBaseError

from shared.errors import ConfigurationError, UnavailableError

_CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
"""After a restart of the server it is found again within a second (by default that can take two minutes)."""


def client_of(url: str, *, connect_s: float, read_s: float, write_s: float) -> WeaviateAsyncClient:
    """`weaviate://host:port?grpc_port=50051`; `secure=true` for TLS, `weaviate://:KEY@host:port` for an API key.

    ConfigurationError for anything else; it never quotes the URL, which may hold a key.
    """
    try:
        parts = urlsplit(url)
        wish = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        host, secure = parts.hostname or "", wish.pop("secure", "false") == "true"
        grpc_port = int(wish.pop("grpc_port", "50051"))
        if wish:
            raise ValueError(f"unknown parameters {sorted(wish)}")
        at = ConnectionParams.from_params(host, parts.port or 8080, secure, host, grpc_port, secure)
    except ValueError as error:
        raise ConfigurationError("index_url: use weaviate://host:port?grpc_port=50051&secure=false") from error
    return WeaviateAsyncClient(
        at,
        auth_client_secret=Auth.api_key(unquote(parts.password)) if parts.password else None,
        additional_config=AdditionalConfig(
            timeout=Timeout(init=connect_s, query=read_s, insert=write_s),
            grpc_config=GrpcConfig(channel_options=_CHANNEL),
        ),
        skip_init_checks=True,  # they would ask a package registry for news
    )


class Connection:
    """Made anew after every trouble."""

    def __init__(self, client: WeaviateAsyncClient) -> None:
        self.client = client
        self._connecting = asyncio.Lock()

    @asynccontextmanager
    async def within(self, limit_s: float, what: str) -> AsyncIterator[None]:
        """Connected, and UnavailableError, which says `what` was wanted, when that or what follows takes longer."""
        try:
            async with asyncio.timeout(limit_s):
                await self._connect()
                yield
        except TimeoutError as error:
            raise UnavailableError(f"index: {what}: no answer within {limit_s:g} s", retry_after_s=1.0) from error
        except (WeaviateBaseError, httpx.HTTPError, OSError) as error:
            said = str(error) or type(error).__name__
            away = f"index: {what}: the index server does not answer"
            raise UnavailableError(f"index: {what}: {said[:300]}", retry_after_s=1.0, outside=away) from error

    async def _connect(self) -> None:
        if self.client.is_connected():
            return
        async with self._connecting:
            if not self.client.is_connected():
                try:
                    await self.client.connect()
                except BaseException:
                    await self.client.close()  # half open
                    raise

    async def close(self) -> None:
        await self.client.close()
