"""Makes an index agree with the catalog, which is authoritative, even while others write to both.

An entry's row determines the entry's place in the index, and serves as its version: not there yet, live, gone. After
changing a row, a writer calls `reconcile`. It writes the index, reads the row again, and writes again if the row
changed in between. Thus the last of two racing writes follows the row's final state, in whatever order they ran,
without a lock between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shared.catalog import Catalog
from shared.index import Index

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Repaired:
    """Counts of a repair. During concurrent writes, entries that were added or removed may be counted too."""

    kept: int
    added: int
    removed: int


async def rebuild_index(catalog: Catalog, index: Index) -> int:
    """Fill an empty index that no other process writes to, page by page in id order; return the number of entries."""
    count, after = 0, ""
    while page := await catalog.entries.items(after, PAGE):
        await index.add(page)
        count += len(page)
        after = page[-1].entry_id
    return count


async def reconcile(catalog: Catalog, index: Index, entry_ids: Iterable[str]) -> None:
    """Index the given entries that are searchable, with the vectors of what they have; remove the others."""
    pending = set(entry_ids)
    while pending:
        items, before = await catalog.entries.placed(sorted(pending))
        if items:
            await index.add(items)
        if gone := sorted(pending - {item.entry_id for item in items}):
            await index.remove(gone)
        after = await catalog.entries.live(sorted(pending))
        pending = {one for one in pending if before.get(one) != after.get(one)}


async def refind(catalog: Catalog, index: Index, entry_ids: Sequence[str]) -> set[str]:
    """Index again the given live entries that searches did not find; return them."""
    missing = await index.missing(entry_ids)
    await reconcile(catalog, index, missing)
    if missing and (half := await index.missing(sorted(missing))):
        await index.remove(sorted(half))
        await reconcile(catalog, index, half)
    return missing


async def repair_index(catalog: Catalog, index: Index, on_checked: Callable[[int], object]) -> Repaired:
    """Remove entries that the catalog does not have, then add entries that searches do not find.

    Other entries are not touched, so searches keep finding them. `on_checked` receives the number of entries checked,
    page by page. An id in the index without a live row was evicted: rows are written before the index, and ids never
    come back.
    """
    kept = added = removed = 0
    async for page in index.ids():
        dead = set(page) - (await catalog.entries.live(page)).keys()
        await reconcile(catalog, index, dead)
        removed += len(dead)
        on_checked(len(page))
    after = ""
    while ids := await catalog.entries.live_ids(after, PAGE):
        missing = await refind(catalog, index, ids)
        kept += len(ids) - len(missing)
        added += len(missing)
        after = ids[-1]
        on_checked(len(ids))
    return Repaired(kept, added, removed)
