"""A shelf for every eviction policy, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.cache_maintainer.aging import AgingShelf, Lrbu
from services.cache_maintainer.eviction import Fifo, Lcbfu, Lfu, Lru, Shelf
from services.cache_maintainer.general import Gdsf, GdsfShelf, S3Fifo, S3FifoShelf, WTinyLfu, WTinyLfuShelf
from shared.types import State

OpenShelf = Callable[[float, Iterable[State]], Shelf]
"""(uses that a state is credited with at birth, states) → shelf; policies that count no uses ignore the first."""

SHELVES: dict[str, OpenShelf] = {
    "lcbfu": lambda uses, states: Shelf(Lcbfu(uses), states),
    "lrbu": lambda uses, states: AgingShelf(Lrbu(uses), states),
    "lru": lambda _, states: Shelf(Lru(), states),
    "lfu": lambda _, states: Shelf(Lfu(), states),
    "fifo": lambda _, states: Shelf(Fifo(), states),
    "gdsf": lambda uses, states: GdsfShelf(Gdsf(uses), states),
    "s3fifo": lambda _, states: S3FifoShelf(S3Fifo(), states),
    "wtinylfu": lambda _, states: WTinyLfuShelf(WTinyLfu(), states),
}
