"""The composition root: open the bus, index, blob store and catalog that four URLs name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from shared.blobs import Blobs, open_blobs
from shared.bus import Bus, open_bus
from shared.catalog import Catalog, open_catalog
from shared.domain.errors import ConfigurationError, StorageFullError, StoreMismatchError, UnavailableError
from shared.index import Hnsw, Index, open_index
from shared.index.rebuild import rebuild_index
from shared.runtime.datadir import DataDirLock, lock_data_dir, works_in_data_dir
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log
from shared.service.pairing import compare, places_of

PORTS = frozenset({"catalog", "blobs", "index", "bus"})
RETRY_S = 0.5
"""Seconds between two tries to reach a server that is still starting."""


@dataclass
class Backends:
    bus: Bus
    index: Index
    blobs: Blobs
    catalog: Catalog
    lock: DataDirLock | None = None

    def started(self) -> None:
        """Let the index in memory build the graph that `open_backends` held back."""
        from shared.index.memory import MemoryIndex

        if isinstance(self.index, MemoryIndex):
            self.index.let_grow()

    async def close(self) -> None:
        await self.bus.close()
        await self.index.close()
        await self.blobs.close()
        await self.catalog.close()
        if self.lock is not None:
            self.lock.release()


class _NotOpened:
    """Placeholder for a port that no service of this process uses."""

    process_local = False

    def __init__(self, port: str) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(f"{self._port}: this process did not open it; add it to the service's `ports`")

    async def close(self) -> None:
        return


async def open_backends(settings: Settings, ports: Collection[str] = PORTS) -> Backends:
    """Open the backends of the settings; first take the data directory's lock if only one process may work there.

    In a cluster only `ports` are opened. A server that is away is retried for `connect_wait_s` seconds, then
    UnavailableError names it. The graph of an index in memory grows after `started`. Raises StoreMismatchError when
    catalog and blob store do not belong together.
    """
    local = works_in_data_dir(settings)
    wanted = PORTS if local else ports
    until = time.monotonic() + (0.0 if local else settings.connect_wait_s)
    async with contextlib.AsyncExitStack() as opened:
        lock = lock_data_dir(settings.data_dir) if local else None
        if lock is not None:
            opened.callback(lock.release)
        made: dict[str, Any] = {port: _NotOpened(port) for port in PORTS}
        for port, open_it in {
            "catalog": lambda: open_catalog(settings.catalog_url),
            "blobs": lambda: blobs_of(settings),
            "index": lambda: index_of(settings),
            "bus": lambda: open_bus(settings.bus_url),
        }.items():
            if port in wanted:
                made[port] = await _patiently(open_it, until)
                opened.push_async_callback(made[port].close)
        if {"catalog", "blobs"} <= set(wanted):
            await _patiently(lambda: _paired(settings, made["catalog"], made["blobs"]), until)
        if made["index"].process_local:
            made["index"].hold_back()
            await rebuild_index(made["catalog"], made["index"])
        opened.pop_all()  # all are open: the caller closes them from now on
        return Backends(**made, lock=lock)
    raise AssertionError("unreachable: nothing above swallows an error")


async def _paired(settings: Settings, catalog: Catalog, blobs: Blobs) -> None:
    """Refuse a catalog and a store that do not belong together; the collector checks again before each pass."""
    try:
        found = await compare(catalog, blobs, places_of(settings))
    except StorageFullError as error:  # a start must succeed, so that it can free space
        log("afterimage").warning("store not adopted", error=str(error))
        return
    if found.state == "mismatch":
        raise StoreMismatchError(found.said)
    if found.state == "unadopted":
        log("afterimage").warning("store not adopted", error=found.said)


async def blobs_of(settings: Settings) -> Blobs:
    secret = settings.blobs_secret_key.get_secret_value()
    return await open_blobs(settings.blobs_url, access_key=settings.blobs_access_key, secret_key=secret)


async def index_of(settings: Settings) -> Index:
    hnsw = Hnsw(
        ef=settings.weaviate_hnsw_ef,
        ef_construction=settings.weaviate_hnsw_ef_construction,
        max_connections=settings.weaviate_hnsw_max_connections,
        exact_up_to=settings.weaviate_exact_up_to,
    )
    return await open_index(settings.index_url, hnsw)


async def _patiently(open_it: Callable[[], Awaitable[Any]], until: float) -> Any:
    """Retry while a server does not answer yet: services and servers may start in any order."""
    while True:
        try:
            return await open_it()
        except UnavailableError as error:
            if time.monotonic() > until:
                raise
            log("afterimage").warning("waiting for a server", error=str(error))
        await asyncio.sleep(RETRY_S)


def require_shared(settings: Settings, service: str) -> None:
    """Raise ConfigurationError for a service alone in its process whose ports other processes cannot see."""
    urls = {name: str(getattr(settings, name)) for name in ("bus_url", "index_url", "catalog_url")}
    for name, url in urls.items():
        if url.split(":", 1)[0].split("+")[0] in ("inprocess", "memory", "sqlite"):
            raise ConfigurationError(
                f"{service} cannot run alone: {name}={url} is inside one process, so no other service would see it. "
                f"Start everything in one process with `afterimage up`, or set AFTERIMAGE_{name.upper()} to a server."
            )
