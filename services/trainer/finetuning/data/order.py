"""Order of the batches: a function of seed and iteration, the same after a restart and on any ranks (pure)."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

from shared.domain.types import Size


def seed_of(*parts: object) -> int:
    """Return a seed from 0 to 2⁶³ − 1 that depends on all parts."""
    digest = hashlib.blake2b("-".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Order:
    """Shuffled batches of one size each.

    In an epoch every row comes once; rows from the start of a bucket's shuffled order fill its last batch.
    """

    def __init__(self, buckets: Mapping[Size, Sequence[int]], batch: int, seed: int) -> None:
        self._buckets, self._batch, self._seed = dict(buckets), batch, seed
        self.batches_per_epoch = sum(math.ceil(len(rows) / batch) for rows in buckets.values())
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def at(self, iteration: int) -> tuple[Size, tuple[int, ...]]:
        """Return the size and the rows of an iteration's batch, counted from 0."""
        epoch, position = divmod(iteration, self.batches_per_epoch)
        return self._epoch(epoch)[position]

    def _shuffled(self, epoch: int) -> list[tuple[Size, tuple[int, ...]]]:
        rng = random.Random(f"{self._seed}-{epoch}")
        found: list[tuple[Size, tuple[int, ...]]] = []
        for size, rows in self._buckets.items():
            order = rng.sample(list(rows), len(rows))
            for start in range(0, len(order), self._batch):
                picked = [order[(start + i) % len(order)] for i in range(self._batch)]
                found.append((size, tuple(picked)))
        rng.shuffle(found)
        return found


def held_out(count: int, share: float, seed: int) -> frozenset[int]:
    """Return the rows kept for validation: a share, at least one if the share is above 0 and two rows exist."""
    kept = min(math.ceil(share * count), count - 1)
    return frozenset(random.Random(f"{seed} held-out").sample(range(count), kept))
