"""Users tracked by the `afterimage` policy: the order of their requests, and the average start K of their images."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

START_EMA_EDGES = (0.08, 0.3, 0.6)
FIRST_START_EMA = sum(START_EMA_EDGES[:2]) / 2
REMEMBERED = 100_000
"""Users that are remembered without live entries. Beyond that number, the longest inactive are removed."""


class Users:
    """One row per user: the average start of the user's images, and the user's entries."""

    def __init__(self) -> None:
        self._row: dict[Hashable, int] = {}
        """Ordered by each user's last request."""
        self._free: list[int] = []
        self._most = REMEMBERED
        self.start_ema = np.full(256, FIRST_START_EMA)
        """Running average of the start K divided by the highest level."""
        self.entries: list[list[int]] = []
        """Slots of each user's live entries, oldest first."""

    def __len__(self) -> int:
        return len(self._row)

    def of(self, name: Hashable) -> int:
        row = self._row.pop(name, None)
        if row is None:
            row = self._new()
        self._row[name] = row
        return row

    def forget(self, name: Hashable) -> None:
        """Remove a user who has no entries left."""
        row = self._row.pop(name, None)
        if row is not None:
            self.start_ema[row] = FIRST_START_EMA
            self._free.append(row)

    def _new(self) -> int:
        if len(self._row) >= self._most:
            self._forget_idle()
        if self._free:
            return self._free.pop()
        row = len(self.entries)
        self.entries.append([])
        if row == len(self.start_ema):
            self.start_ema = np.concatenate([self.start_ema, np.full(row, FIRST_START_EMA)])
        return row

    def _forget_idle(self) -> None:
        """Remove users without entries from the longer inactive half; raise the limit if too many have entries."""
        for name in list(self._row)[: len(self._row) // 2]:
            if not self.entries[self._row[name]]:
                self.forget(name)
        self._most = max(REMEMBERED, 3 * len(self._row) // 2)
