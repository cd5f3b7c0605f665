"""Fills an index from the catalog, which alone is authoritative."""

from __future__ import annotations

from shared.catalog import Catalog
from shared.index import Index

PAGE = 1000


async def rebuild_index(catalog: Catalog, index: Index) -> int:
    """Adds every entry that has a live state, page by page in id order; returns how many.

    Adding replaces, so it may run while the index serves; entries that are no longer in the catalog stay, and a
    search that finds one finds no row for it.
    """
    count, after = 0, ""
    while page := await catalog.entries.items(after, PAGE):
        await index.add(page)
        count += len(page)
        after = page[-1].entry_id
    return count
