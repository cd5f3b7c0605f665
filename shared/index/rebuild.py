"""Makes an index agree with the catalog, which alone is authoritative, also while others write to both.

What an entry's place in the index should be is read off its row, and the row is its version: not there yet, live, gone.
Whoever changes a row brings the index into line afterwards with `reconcile`, which looks at the row once more after it
wrote and writes again when that changed meanwhile. So the last write of any two that race follows the row as it is in
the end, in whatever order the two ran, without a lock between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shared.catalog import Catalog
from shared.index import Index

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair found; while others write, entries that came or went meanwhile may be counted too."""

    kept: int
    added: int
    removed: int


async def rebuild_index(catalog: Catalog, index: Index) -> int:
    """Fills an empty index that nobody else writes to, page by page in id order; returns how many entries it has."""
    count, after = 0, ""
    while page := await catalog.entries.items(after, PAGE):
        await index.add(page)
        count += len(page)
        after = page[-1].entry_id
    return count


async def reconcile(catalog: Catalog, index: Index, entry_ids: Iterable[str]) -> None:
    """Adds those of these entries that something can be had from, each under what it has, and removes the others."""
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
    """Those of these entries, with a live state, that searches did not find; they do now."""
    missing = await index.missing(entry_ids)
    await reconcile(catalog, index, missing)
    if missing and (half := await index.missing(sorted(missing))):
        await index.remove(sorted(half))
        await reconcile(catalog, index, half)
    return missing


async def repair_index(catalog: Catalog, index: Index, on_checked: Callable[[int], object]) -> Repaired:
    """Removes what the catalog does not know, then adds what searches do not find; nothing else is touched, so that
    they go on finding what they found. `on_checked` gets the number of entries looked at, page by page.

    An id in the index without a live row was evicted: rows come before the index, and do not come back.
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
