"""Entries read from the catalog: kept in memory for lookups, and counted for the rules of variety."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.retriever.recent_entries import Remembered
from services.retriever.seen import Seen
from shared.catalog import Catalog
from shared.domain.errors import AfterimageError
from shared.domain.types import Entry
from shared.runtime.telemetry import log

PAGE = 200
"""Entries read at a time while the memory is filled."""
REMEMBERED_ENTRIES = 10_000
"""Entries kept in memory, 3 KB each."""


class EntryReader:
    """The catalog's entries, with the newest in memory."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.remembered, self.seen = Remembered(REMEMBERED_ENTRIES), Seen()

    async def read(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """Return these entries, from memory where possible."""
        known = self.remembered.known(entry_ids)
        if len(known) < len(entry_ids):
            mark = self.remembered.mark
            read = await self._catalog.entries.by_ids([one for one in entry_ids if one not in known])
            self.remembered.put(read.values(), mark)
            known |= read
        return known

    async def read_cached(self, entry_ids: Sequence[str]) -> None:
        """Read entries that were just cached, and count them: a user often refines an image just generated."""
        read = await self.read(entry_ids)
        self.seen.note(read[one] for one in entry_ids if one in read)

    async def read_newest(self) -> None:
        """Fill the memory with the newest entries, in the background."""
        after, read, seen = "", 0, self.seen
        while read < REMEMBERED_ENTRIES and seen is self.seen:  # after a gap another reader begins anew
            try:
                mark = self.remembered.mark
                page, after = await self._catalog.entries.page(PAGE, after)
            except AfterimageError as error:
                log("retriever").warning("catalog unreachable, entries are read when needed", error=str(error))
                return
            self.remembered.put([entry for entry in page if entry.states], mark)
            seen.note(page, older=True)
            read += len(page)
            if not after:
                return
            await asyncio.sleep(0.02)  # let requests go first

    def forget_all(self) -> None:
        """Drop all entries and counts, because events were missed."""
        self.remembered.forget_all()
        self.seen = Seen()
