"""Which settings of the services a policy's settings file stands for, and which policies the services cannot serve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from services.replay.policy import PolicySettings, read_policy, shipped
from services.replay.simulated.predicted import SKETCH_MARGIN
from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings

LATENT_EVICTIONS: tuple[str, ...] = get_args(Settings.model_fields["eviction_policy"].annotation)
UNLIMITED_BYTES = 2**62

OWN: dict[str, Any] = {
    "bus_url": "inprocess:", "index_url": "memory:", "catalog_url": "", "blobs_url": "",
    "embedder_address": "", "match_predictor_address": "", "retriever_address": "", "cache_maintainer_address": "",
    "global_monitor_address": "", "log_level": "error",
}  # fmt: skip
"""A process of its own, whatever the environment names."""

UNHURRIED: dict[str, Any] = {
    "lookup_timeout_s": 60.0, "call_timeout_s": 60.0, "fetch_timeout_s": 60.0, "results_keep_s": 1e9,
    "epsilon": 0.0, "sample_predicted_misses": 0.0, "drain_s": 0.5,
}  # fmt: skip
"""Nothing is given up for being late and nothing left to a lot, as in the other modes: every policy decides alone."""


@dataclass(frozen=True)
class ServedPolicy:
    """What serves as a policy says."""

    settings: Settings
    cache: Literal["auto", "off"] = "auto"
    """What its requests may do with the cache."""


def stand_for(name: str, policy: PolicySettings, base: Settings, room_bytes: int) -> ServedPolicy:
    """The services' settings for a policy with a budget in bytes; `base`: models, devices and batching.

    ConfigurationError says why the services cannot serve it, and names those that they can.
    """
    refuse([(name, policy)], base)
    cached = policy.lookup != "none"
    changes = OWN | UNHURRIED | _changes(policy, UNLIMITED_BYTES if policy.unlimited else room_bytes)
    return ServedPolicy(Settings(**(base.model_dump() | changes)), "auto" if cached else "off")


def refuse(policies: Iterable[tuple[str, PolicySettings]], base: Settings) -> None:
    """ConfigurationError for the first that the services cannot serve."""
    for name, policy in policies:
        if reason := why_not(policy, base):
            named = ", ".join(servable(base))
            raise ConfigurationError(
                f"policy {name!r}: cannot be served on real models: {reason}; of those that ship these can: {named}"
            )


def servable(base: Settings) -> Sequence[str]:
    """The policies that ship and that the services can serve."""
    return [name for name in shipped() if not why_not(read_policy(name), base)]


def why_not(policy: PolicySettings, base: Settings) -> str:
    """Why the services cannot do what the file says; empty when they can."""
    if policy.lookup == "none":
        return ""
    if policy.lookup == "text":
        return "they hand out a stored picture for the same words only with the same seed, and traces hold no seeds"
    if policy.reuses == "picture":
        return "they hand out no picture for another prompt"
    if policy.refit_requests:
        return "their SVM says itself when it is fitted (refit_requests must be 0)"
    if policy.raised_by:
        return "they start from pictures by the tables as they were measured (raised_by must be 0)"
    if policy.reuses == "refine":
        told = policy.insert_on_hit or base.small
        return "" if told else "they tell pictures of hits by the model that drew them: name one for hits (small)"
    known = LATENT_EVICTIONS
    return "" if policy.evict in known else f"they evict latents by {', '.join(known)}, not by {policy.evict}"


def _changes(policy: PolicySettings, room_bytes: int) -> dict[str, Any]:
    """What differs from one policy to the next."""
    if policy.lookup == "none":
        return {"cache_max_bytes": 0, "capture_steps": (), "image_tier": "off", "small": ""}
    alike = {
        "candidates": policy.candidates,
        "further_candidates": policy.further_candidates,
        "predictor": policy.predictor,
        "sketch_margin": SKETCH_MARGIN,
        "lcbfu_initial_uses": policy.initial_uses,
    }
    if policy.reuses == "refine":  # a window of finished pictures, and no latents
        return alike | {
            "image_tier": "all" if policy.insert_on_hit else "large",
            "picture_policy": policy.evict,
            "picture_max_bytes": room_bytes,
            "picture_max_count": UNLIMITED_BYTES,
            "picture_max_age_s": 0.0,
            "cache_max_bytes": 0,
            "capture_steps": (),
        }
    return alike | {
        "image_tier": "off",
        "small": "",
        "eviction_policy": policy.evict,
        "cache_max_bytes": room_bytes,
        "capture_steps": policy.capture_steps,
        "state_codec": policy.state_codec,
        "insert_on_hit": policy.insert_on_hit,
    }
