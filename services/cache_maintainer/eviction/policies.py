"""Creates the state store and the image window that the settings select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.cache_maintainer.eviction.afterimage import ExpectedStateStore
from services.cache_maintainer.eviction.aging import AgingStateStore, Lrbu
from services.cache_maintainer.eviction.levels import OF
from services.cache_maintainer.eviction.scored import POLICIES, Lcbfu, Policy, StateStore
from services.cache_maintainer.eviction.window import Limits, Window
from shared.domain.types import State
from shared.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Knobs:
    """Parameters of the policies; each policy uses those it needs."""

    initial_uses: float = 1.0
    """Uses that a new state is credited with."""
    capture_steps: Sequence[int] = ()
    """Captured steps K, of 50."""
    whole: bool = False
    """True if an entry is one unit that holds every K."""


_WEIGHED: dict[str, Callable[[Knobs, Iterable[State]], StateStore]] = {
    "lrbu": lambda knobs, states: AgingStateStore(Lrbu(knobs.initial_uses), states),
    "afterimage": lambda knobs, states: ExpectedStateStore(
        knobs.capture_steps or (OF // 2,), states, whole=knobs.whole
    ),
}
SHELVES = (*POLICIES, *_WEIGHED)
"""Names of all policies; the image window accepts only those in POLICIES."""


def open_state_store(name: str, knobs: Knobs, states: Iterable[State] = ()) -> StateStore:
    """Return a state store with the named policy. Raise KeyError for a name that is not in SHELVES."""
    return StateStore(plain(name, knobs), states) if name in POLICIES else _WEIGHED[name](knobs, states)


def plain(name: str, knobs: Knobs) -> Policy:
    """Return a policy of POLICIES by name."""
    return Lcbfu(knobs.initial_uses) if name == "lcbfu" else POLICIES[name]()


def state_store_of(settings: Settings, states: Sequence[State]) -> StateStore:
    """Return the latents' state store under the policy of the settings."""
    return open_state_store(settings.eviction_policy, _knobs(settings), states)


def window_of(settings: Settings, states: Sequence[State]) -> Window | None:
    """Return the image window, or None if no image may start another."""
    if settings.image_tier == "off":
        return None
    limits = Limits(settings.picture_max_count, settings.picture_max_bytes)
    return Window(plain(settings.picture_policy, _knobs(settings)), limits, states)


def _knobs(settings: Settings) -> Knobs:
    return Knobs(settings.lcbfu_initial_uses, settings.capture_steps)
