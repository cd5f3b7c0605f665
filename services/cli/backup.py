"""`afterimage backup` and `afterimage restore`: catalog and blobs in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.display.words import counted, sized, wide
from services.cli.embedded import settings_from
from services.cli.maintainer import require_data_dir
from shared.blobs import BlobInfo, Blobs, open_blobs, pages
from shared.domain.errors import BlobCorruptError, BlobMissingError, ConfigurationError, InvalidRequestError
from shared.runtime.audit import local_actor, recorded
from shared.runtime.clock import SystemClock
from shared.runtime.datadir import lock_data_dir
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # the catalog's imports take a second that --help need not wait for
    from shared.service.pairing import Seal

AT_ONCE = 16
"""Blobs that are copied at the same time."""
LEFT_OUT = ("checkpoints/",)
"""Blobs of running jobs, which begin their plan again without them."""
STATES = "states/"

DataDir = Annotated[Path | None, typer.Option(help="Data directory of the Afterimage. Four URLs may replace it.")]


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup. A later backup into it copies what is new.")],
    states: Annotated[
        bool, typer.Option(help="Copy the cache's latents, too: most bytes, and no loss but hits.")
    ] = True,
    data_dir: DataDir = None,
) -> None:
    """Copy the catalog, then the blobs, to a folder, while Afterimage serves.

    The folder is a mirror: what was erased, evicted or expired leaves it with the next backup. What the store lost, and
    the catalog still names, stays. At every moment it holds a backup that can be restored. PostgreSQL needs `pg_dump`
    on PATH.

    Example: afterimage backup /mnt/backup/afterimage
    """
    settings = settings_from(data_dir=data_dir)
    require_data_dir(settings)
    with recorded(settings.data_dir, actor=local_actor(), action="backup", target=str(folder)):
        done = asyncio.run(back_up(settings, folder, states=states))
    _say(done, f"backed up to {folder}")


def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that `afterimage backup` made.")], data_dir: DataDir = None
) -> None:
    """Make a catalog and its blobs from a backup. No catalog may be there, and nothing may serve it.

    Blobs that the store has beyond the backup stay: the quarantine keeps them for three days. Erase again what was
    erased after the backup. Where the index is a server, run `afterimage cache rebuild-index` next.

    Example: afterimage restore /mnt/backup/afterimage --data-dir restored
    """
    settings = settings_from(data_dir=data_dir)
    with recorded(settings.data_dir, actor=local_actor(), action="restore", target=str(folder)):
        done = asyncio.run(restored(settings, folder))
    _say(done, f"restored from {folder}")


def _say(done: Copied, what: str) -> None:
    out = wide()
    each = ", ".join(f"{number} in {kind}" for kind, number in sorted(done.blobs.items()))
    out.print(f"{what}: the catalog and {counted(done.blobs.total(), 'blob')} ({each or 'none'}), {sized(done.bytes)}")
    if done.same or done.gone:
        out.print(f"{done.same} were there already, {done.gone} left the backup")
    for said, keys in (("not copied, because damaged", done.corrupt), ("lost by the store, kept here", done.missing)):
        if keys:
            out.print(f"{said}: {', '.join(keys[:5])}{f' … ({len(keys)})' if keys[5:] else ''}")


class Copied:
    """Counts of the blobs that a backup or restore copied, left out or removed."""

    def __init__(self) -> None:
        self.blobs: Counter[str] = Counter()
        """Copied blobs by kind."""
        self.bytes = self.same = self.gone = 0
        self.corrupt: list[str] = []
        self.missing: list[str] = []
        """Blobs that a row names and the backup has, and the store no longer."""

    async def copy(self, source: Blobs, target: Blobs, blob: BlobInfo) -> None:
        """Copy one blob, whose hash is checked. A blob that was deleted meanwhile, or is damaged, is left out."""
        try:
            data = await source.get(blob.key)
        except BlobMissingError:
            return
        except BlobCorruptError:
            self.corrupt.append(blob.key)
            return
        await target.put(blob.key, data, durable=False)
        self.blobs[blob.key.partition("/")[0]] += 1
        self.bytes += len(data)


async def back_up(settings: Settings, folder: Path, *, states: bool = True) -> Copied:
    """Copy catalog and blobs to the folder. Raises ConfigurationError for a folder with another catalog's backup, and
    InvalidRequestError for one where a backup would overwrite what it copies, and DataDirectoryLockedError while
    another backup into it runs.

    The catalog comes first: what is missing then was deleted while the copy ran, and what is too much goes through the
    quarantine. Blobs first would lose images of jobs that ended meanwhile. Only once all blobs are there, the new
    catalog replaces the former one, and what neither store nor catalog has leaves the folder.
    """
    from shared.catalog.dump import dump, dump_name
    from shared.service.pairing import read_seal

    name = dump_name(settings.catalog_url)
    _check_apart(settings, folder)
    done, left_out = Copied(), (*LEFT_OUT, *(() if states else (STATES,)))
    async with contextlib.AsyncExitStack() as held:
        held.callback(lock_data_dir(folder, "folder").release)
        blobs, kept = await held.enter_async_context(_stores(settings, folder))
        _check_same(await read_seal(blobs), await read_seal(kept), folder)
        await dump(settings.catalog_url, folder / f"{name}.new")
        there = {blob.key: blob async for blob in kept.list()}
        async for listed in pages(blobs.list(), AT_ONCE):
            page = [blob for blob in listed if not blob.key.startswith(left_out)]
            new = [blob for blob in page if not _same(blob, there.pop(blob.key, None))]
            done.same += len(page) - len(new)
            await asyncio.gather(*(done.copy(blobs, kept, blob) for blob in new))
        named = await _named(settings.catalog_url, [key for key in there if not key.startswith(left_out)])
        await asyncio.to_thread(os.sync)  # a power cut must not keep the new name without what the catalog names
        (folder / f"{name}.new").rename(folder / name)
        await asyncio.to_thread(os.sync)
        done.missing = sorted(named)
        done.gone = len(there) - len(named)
        await kept.delete(sorted(there.keys() - named))
    return done


async def restored(settings: Settings, folder: Path) -> Copied:
    """Copy the folder's blobs, then its catalog, to the places that the settings name. Raises ConfigurationError where
    a catalog is there, or another catalog's store.

    The catalog comes last: an interrupted restore leaves none, and can be run again.
    """
    from shared.catalog.dump import check_new, dump_name, load
    from shared.service.pairing import places_of, read_seal

    file = folder / dump_name(settings.catalog_url)
    if not file.is_file():
        raise InvalidRequestError("folder", f"must hold {file.name}, as a backup of such a catalog does", str(folder))
    done = Copied()
    with contextlib.ExitStack() as held:
        if settings.catalog_url.startswith("sqlite"):
            held.callback(lock_data_dir(settings.data_dir).release)
        await check_new(settings.catalog_url)
        async with _stores(settings, folder) as (blobs, kept):
            seal = await read_seal(blobs)
            _check_same(await read_seal(kept), seal, places_of(settings).store)
            async for page in pages(kept.list(), AT_ONCE):
                await asyncio.gather(*(done.copy(kept, blobs, blob) for blob in page))
        await asyncio.to_thread(os.sync)
        await load(settings.catalog_url, file)
        await asyncio.to_thread(os.sync)
    return done


def _check_apart(settings: Settings, folder: Path) -> None:
    """Raise InvalidRequestError for a folder that is, holds or lies in one of the data: both have the same file
    names."""
    from shared.catalog.engines.opening import place_of
    from shared.service.pairing import places_of

    data = [settings.data_dir]
    if settings.catalog_url.startswith("sqlite"):
        data.append(Path(place_of(settings.catalog_url)).parent)
    if settings.blobs_url.startswith("file:"):
        data.append(Path(places_of(settings).store))
    own = folder.resolve()
    for one in (path.resolve() for path in data):
        if own.is_relative_to(one) or one.is_relative_to(own):
            raise InvalidRequestError("folder", f"must lie outside of the data in {one}", str(folder))


async def _named(catalog_url: str, keys: list[str]) -> set[str]:
    """Return those of the blobs that a row of the catalog names."""
    from shared.catalog.engines.opening import open_database
    from shared.catalog.entries.entries import Entries

    database = open_database(catalog_url, SystemClock())
    try:
        return await Entries(database).referenced(keys)
    finally:
        await database.close()


def _check_same(source: Seal | None, target: Seal | None, place: object) -> None:
    """Raise ConfigurationError where the target belongs to another catalog: its blobs would be removed or mixed."""
    if target is not None and (source is None or source.catalog != target.catalog):
        raise ConfigurationError(
            f"{place} belongs to catalog {target.catalog}, and not to {source.catalog if source else 'this one'}: name "
            "another place"
        )


def _same(blob: BlobInfo, kept: BlobInfo | None) -> bool:
    return kept is not None and kept.bytes == blob.bytes and kept.modified_at >= blob.modified_at


@contextlib.asynccontextmanager
async def _stores(settings: Settings, folder: Path) -> AsyncIterator[tuple[Blobs, Blobs]]:
    """Open the blob store of the settings, and that of the backup."""
    from shared.service.backends import blobs_of

    async with contextlib.AsyncExitStack() as opened:
        blobs = await blobs_of(settings)
        opened.push_async_callback(blobs.close)
        kept = await open_blobs(f"file:{folder / 'blobs'}")  # the store makes it absolute
        opened.push_async_callback(kept.close)
        yield blobs, kept
