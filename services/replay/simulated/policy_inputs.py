"""The inputs of one policy: its table and neighbours, the bytes of each state, and an empty cache."""

from __future__ import annotations

from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.eviction.policies import Knobs, plain
from services.cache_maintainer.eviction.scored import Fifo, StateStore
from services.cache_maintainer.eviction.window import Limits, Window
from services.replay.policy import CODEC_SHARE, PolicySettings
from services.replay.simulated.general import open_state_store
from services.replay.traces.load import Load
from services.replay.traces.neighbours import Neighbours
from shared.domain.errors import ConfigurationError
from shared.models.k_table import KTable, Level

UNLIMITED = 2**62


def table_and_neighbours(load: Load, policy: PolicySettings) -> tuple[KTable, Neighbours]:
    """The table, and the lists of what it is asked about."""
    table, near = load.table, load.neighbours
    if policy.is_surrogate:
        if load.pictures is None:
            raise ConfigurationError(f"policy {policy.title!r}: similarities to pictures were not prepared")
        table, near = load.pictures.table, load.pictures.neighbours
    if policy.reuses != "picture":
        return table, near
    if policy.is_surrogate and load.group_of is not None:  # its lists know no sizes, since a refined one takes any
        raise ConfigurationError(f"policy {policy.title!r}: hands out pictures of every size; leave out honour_sizes")
    return KTable((Level(load.steps, policy.min_similarity),), load.steps), near


def bytes_of_states(load: Load, policy: PolicySettings) -> list[int]:
    """Of one state of each request; of its picture, whether that is handed out as it is or refined."""
    if policy.reuses != "latent":
        return load.picture_bytes.tolist()
    share = CODEC_SHARE[policy.state_codec]
    return [max(1, round(size * share)) for size in load.state_bytes.tolist()]


def empty_contents(policy: PolicySettings, room: int, *, whole: bool) -> CacheContents:
    """A shelf of latents with so much room, or a window of pictures; whole: latents come and leave by entries."""
    knobs = Knobs(policy.initial_uses, capture_steps=policy.capture_steps, whole=whole)
    if policy.reuses == "latent":
        return CacheContents(open_state_store(policy.evict, knobs), None, room)
    return CacheContents(StateStore(Fifo()), Window(plain(policy.evict, knobs), Limits(UNLIMITED, room)), 0)
