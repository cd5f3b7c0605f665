"""Users whose requests the `afterimage` policy counts: when each last asked, and from which K their images start."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

START_EMA_EDGES = (0.08, 0.3, 0.6)
FIRST_START_EMA = sum(START_EMA_EDGES[:2]) / 2
REMEMBERED = 100_000
"""Users of whom something is known though none of their entries is left; with more, who asked longest ago is new."""


class Users:
    """Who asked, and how their pictures start; one row each."""

    def __init__(self) -> None:
        self._row: dict[Hashable, int] = {}
        """In the order in which they last asked."""
        self._free: list[int] = []
        self._most = REMEMBERED
        self.start_ema = np.full(256, FIRST_START_EMA)
        """Running average of K over the highest level."""
        self.entries: list[list[int]] = []
        """Slots of their live entries, oldest first."""

    def __len__(self) -> int:
        return len(self._row)

    def of(self, name: Hashable) -> int:
        row = self._row.pop(name, None)
        if row is None:
            row = self._new()
        self._row[name] = row
        return row

    def forget(self, name: Hashable) -> None:
        """Who has no entries left."""
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
        """Of the half that asked longest ago those without entries; with very many entries more users may stay."""
        for name in list(self._row)[: len(self._row) // 2]:
            if not self.entries[self._row[name]]:
                self.forget(name)
        self._most = max(REMEMBERED, 3 * len(self._row) // 2)
