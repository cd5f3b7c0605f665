"""The one composition root: four URLs become a bus, an index, a blob store and a catalog."""

from __future__ import annotations

from dataclasses import dataclass

from shared.blobs import Blobs, open_blobs
from shared.bus import Bus, open_bus
from shared.catalog import Catalog, open_catalog
from shared.datadir import DataDirLock, lock_data_dir
from shared.errors import ConfigurationError
from shared.index import Index, open_index
from shared.index.rebuild import rebuild_index
from shared.settings import Settings


@dataclass
class Backends:
    bus: Bus
    index: Index
    blobs: Blobs
    catalog: Catalog
    lock: DataDirLock | None = None

    async def close(self) -> None:
        await self.bus.close()
        await self.index.close()
        await self.blobs.close()
        await self.catalog.close()
        if self.lock is not None:
            self.lock.release()


async def open_backends(settings: Settings) -> Backends:
    """Opens what the settings name; the embedded mode takes the data directory's lock first."""
    local = settings.bus_url.startswith("inprocess:")
    lock = lock_data_dir(settings.data_dir) if local else None
    try:
        catalog = await open_catalog(settings.catalog_url)
        blobs = await open_blobs(settings.blobs_url)
        index = await open_index(settings.index_url)
        if index.process_local:
            await rebuild_index(catalog, index)
        return Backends(await open_bus(settings.bus_url), index, blobs, catalog, lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def require_shared(settings: Settings, service: str) -> None:
    """A service alone in its process needs ports that other processes see too (design §8)."""
    for name, url in (("bus_url", settings.bus_url), ("index_url", settings.index_url)):
        if url.split(":", 1)[0] in ("inprocess", "memory"):
            raise ConfigurationError(
                f"{service} cannot run alone: {name}={url} lives inside one process, so no other service would see it. "
                f"Start everything in one process with `afterimage up`, or set AFTERIMAGE_{name.upper()} to a server."
            )
