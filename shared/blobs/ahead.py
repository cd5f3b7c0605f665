"""Speculative read of a blob, so that the read overlaps with the query that decides which blob is needed."""

from __future__ import annotations

import asyncio

from shared.blobs import Blobs
from shared.domain.errors import AfterimageError


class ReadAhead:
    """One read in progress, of a blob that a message named. The message is only a hint.

    The caller learns the real key and hash from the row and calls `get`. If they match the hint, `get` waits for the
    read in progress. If they differ, or if that read failed, `get` reads again.
    """

    def __init__(self, blobs: Blobs, key: str = "", sha256: str = "") -> None:
        self._blobs, self._of = blobs, (key, sha256)
        self._reading = asyncio.create_task(self._read()) if key and sha256 else None

    async def _read(self) -> bytes | None:
        try:
            return await self._blobs.get(*self._of)
        except AfterimageError:  # `get` reads again and raises the error
            return None

    async def get(self, key: str, sha256: str = "") -> bytes:
        """Return the content; see Blobs.get."""
        reading, self._reading = self._reading, None
        if reading is not None and (key, sha256) == self._of:
            if (data := await reading) is not None:
                return data
        elif reading is not None:
            reading.cancel()
        return await self._blobs.get(key, sha256)

    def close(self) -> None:
        """Cancel the read, if any."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
