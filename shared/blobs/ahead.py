"""A blob that is read before anyone knows whether it is wanted, so that knowing and reading go on at once."""

from __future__ import annotations

import asyncio

from shared.blobs import Blobs
from shared.domain.errors import AfterimageError


class ReadAhead:
    """One read that is under way, of a blob that a message named: a hint, of which nothing is believed.

    Whoever then learns from the row what is to be read asks `get`, which waits for the read that was begun when it is
    of that very blob (same key, same hash), and reads for itself when it is not, or when that one failed.
    """

    def __init__(self, blobs: Blobs, key: str = "", sha256: str = "") -> None:
        self._blobs, self._of = blobs, (key, sha256)
        self._reading = asyncio.create_task(self._read()) if key and sha256 else None

    async def _read(self) -> bytes | None:
        try:
            return await self._blobs.get(*self._of)
        except AfterimageError:  # whoever needs it reads it again, and says what is wrong
            return None

    async def get(self, key: str, sha256: str = "") -> bytes:
        """See Blobs.get."""
        reading, self._reading = self._reading, None
        if reading is not None and (key, sha256) == self._of:
            if (data := await reading) is not None:
                return data
        elif reading is not None:
            reading.cancel()
        return await self._blobs.get(key, sha256)

    def close(self) -> None:
        """Nobody will ask any more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
