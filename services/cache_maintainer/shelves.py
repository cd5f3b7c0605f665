"""A shelf for every eviction policy, by name, and those that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from services.cache_maintainer.aging import AgingShelf, Lrbu
from services.cache_maintainer.eviction import POLICIES, Fifo, Lcbfu, Lfu, Lru, Policy, Shelf
from services.cache_maintainer.expected import OF, ExpectedShelf
from services.cache_maintainer.general import Gdsf, GdsfShelf, S3Fifo, S3FifoShelf, WTinyLfu, WTinyLfuShelf
from services.cache_maintainer.window import Limits, Window
from shared.settings import Settings
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


def policy_of(name: str, settings: Settings) -> Policy:
    if name == "lcbfu":
        return Lcbfu(settings.lcbfu_initial_uses, settings.lcbfu_tie)
    return POLICIES[name]()


def shelf_of(settings: Settings, states: Sequence[State]) -> Shelf:
    """The latents' shelf under the policy of the settings."""
    if settings.eviction_policy in POLICIES:
        return Shelf(policy_of(settings.eviction_policy, settings), states)
    levels = settings.capture_steps or (OF // 2,)
    return SHELVES[settings.eviction_policy](settings.lcbfu_initial_uses, states, levels)


def window_of(settings: Settings, states: Sequence[State]) -> Window | None:
    """None where no picture starts another."""
    if settings.image_tier == "off":
        return None
    limits = Limits(settings.picture_max_count, settings.picture_max_bytes, settings.picture_max_age_s)
    return Window(policy_of(settings.picture_policy, settings), limits, states)
