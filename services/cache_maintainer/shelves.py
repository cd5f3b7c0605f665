"""A shelf for every eviction policy, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from services.cache_maintainer.aging import AgingShelf, Lrbu
from services.cache_maintainer.eviction import Fifo, Lcbfu, Lfu, Lru, Shelf
from services.cache_maintainer.expected import ExpectedShelf
from services.cache_maintainer.general import Gdsf, GdsfShelf, S3Fifo, S3FifoShelf, WTinyLfu, WTinyLfuShelf
from shared.types import State

OpenShelf = Callable[[float, Iterable[State], Sequence[int]], Shelf]
"""(uses that a state is credited with at birth, states, the K that are kept) → shelf; most need only the second."""

SHELVES: dict[str, OpenShelf] = {
    "lcbfu": lambda uses, states, _: Shelf(Lcbfu(uses), states),
    "lrbu": lambda uses, states, _: AgingShelf(Lrbu(uses), states),
    "lru": lambda _, states, __: Shelf(Lru(), states),
    "lfu": lambda _, states, __: Shelf(Lfu(), states),
    "fifo": lambda _, states, __: Shelf(Fifo(), states),
    "afterimage": lambda _, states, levels: ExpectedShelf(levels, states),
    "gdsf": lambda uses, states, _: GdsfShelf(Gdsf(uses), states),
    "s3fifo": lambda _, states, __: S3FifoShelf(S3Fifo(), states),
    "wtinylfu": lambda _, states, __: WTinyLfuShelf(WTinyLfu(), states),
}
