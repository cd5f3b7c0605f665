"""Inputs of one policy: its table and neighbour lists, the bytes of each state, and an empty cache."""

from __future__ import annotations

from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.eviction.policies import Knobs, plain
from services.cache_maintainer.eviction.scored import Fifo, StateStore
from services.cache_maintainer.eviction.window import Limits, Window
from services.replay.policy import PolicySettings
from services.replay.simulated.general import open_state_store
from services.replay.traces.load import Load
from services.replay.traces.neighbours import Neighbours
from shared.domain.errors import ConfigurationError
from shared.models.k_table import KTable, Level

UNLIMITED = 2**62


def table_and_neighbours(load: Load, policy: PolicySettings) -> tuple[KTable, Neighbours]:
    """Return the policy's K table, and the neighbour lists that it is applied to."""
    table, near = load.table, load.neighbours
    if policy.is_surrogate:
        if load.pictures is None:
            raise ConfigurationError(
                f"policy {policy.title!r}: the load has no similarities to images; prepare it with Options.pictures"
            )
        table, near = load.pictures.table, load.pictures.neighbours
    if policy.reuses != "picture":
        return table, near
    if (
        policy.is_surrogate and load.group_of is not None
    ):  # the surrogate's lists ignore sizes, since a refined image takes any size
        raise ConfigurationError(f"policy {policy.title!r}: returns images of every size; leave out honour_sizes")
    return KTable((Level(load.steps, policy.min_similarity),), load.steps), near


def bytes_of_states(load: Load, policy: PolicySettings) -> list[int]:
    """Return the bytes of each request's state in fp16, or of its image if the policy reuses images."""
    sizes: list[int] = (load.state_bytes if policy.reuses == "latent" else load.picture_bytes).tolist()
    return sizes


def empty_contents(policy: PolicySettings, room: int, *, whole: bool) -> CacheContents:
    """Return an empty cache of latents or images with this room; `whole`: latents are kept and evicted by entries."""
    knobs = Knobs(policy.initial_uses, capture_steps=policy.capture_steps, whole=whole)
    if policy.reuses == "latent":
        return CacheContents(open_state_store(policy.evict, knobs), None, room)
    return CacheContents(StateStore(Fifo()), Window(plain(policy.evict, knobs), Limits(UNLIMITED, room)), 0)
