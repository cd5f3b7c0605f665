"""Live entries of the `afterimage` policy in numpy columns, one slot per entry."""

from __future__ import annotations

import numpy as np

from services.cache_maintainer.eviction.levels import OF


class Entries:
    """Data columns of live entries; each entry has one slot."""

    def __init__(self) -> None:
        self.names = [""] * 1024
        self.user = np.zeros(1024, np.int64)
        self.newer = np.zeros(1024, np.int64)
        """Later entries of the same user, capped at the last index of RANKS."""
        self.start = np.zeros(1024, np.int64)
        self.uses = np.zeros(1024, np.int64)
        self.held = np.zeros(1024, np.int64)
        """Bit p is set if the state at level index p is present."""
        self.base = np.zeros(1024, np.int64)
        """1 + level index of the state that others of the entry need; 0: none."""
        self.bytes = np.ones(1024, np.int64)
        """Bytes of one state."""
        self.total = np.full(1024, OF, np.int64)
        """Steps of the entry's whole run."""
        self.used_at = np.zeros(1024)
        """Time of the last start from the entry, or of its creation, in seconds."""
        self._free = list(range(1023, -1, -1))

    def take(self, name: str) -> int:
        if not self._free:
            count = len(self.names)
            self.names += [""] * count
            for column in ("user", "newer", "start", "uses", "held", "base", "bytes", "total", "used_at"):
                before = getattr(self, column)
                setattr(self, column, np.concatenate([before, np.zeros(count, before.dtype)]))
            self._free = list(range(2 * count - 1, count - 1, -1))
        slot = self._free.pop()
        self.names[slot] = name
        self.newer[slot] = self.start[slot] = self.uses[slot] = self.held[slot] = self.base[slot] = 0
        return slot

    def give_back(self, slot: int) -> None:
        self.names[slot] = ""
        self._free.append(slot)
