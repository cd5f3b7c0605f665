"""Translate a policy's settings file into settings of the services; refuse policies that they cannot serve."""

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
    "embedder_address": "", "text_extractor_address": "", "match_predictor_address": "", "retriever_address": "",
    "cache_maintainer_address": "", "global_monitor_address": "", "log_level": "error",
}  # fmt: skip
"""Settings that replace the environment's, so the policy runs in a process of its own."""

UNHURRIED: dict[str, Any] = {
    "lookup_timeout_s": 60.0, "call_timeout_s": 60.0, "fetch_timeout_s": 60.0, "results_keep_s": 1e9,
    "extract_timeout_s": 60.0, "epsilon": 0.0, "sample_predicted_misses": 0.0, "drain_s": 0.5, "reuse_bound": "auto",
    "reuse_rules": "paper",
}  # fmt: skip
"""Settings with long timeouts, without random choices and rules of variety, as in the other modes of a replay."""


@dataclass(frozen=True)
class ServedPolicy:
    """Settings under which the services act as a policy."""

    settings: Settings
    cache: Literal["auto", "off"] = "auto"
    """Cache mode of its requests."""


def stand_for(name: str, policy: PolicySettings, base: Settings, room_bytes: int, frames: int = 1) -> ServedPolicy:
    """Return the services' settings for a policy with a budget in bytes; `base` has models, devices and batching.

    frames: of each request; more than one: clips.

    Raises ConfigurationError for a policy that the services cannot serve, with the reason and the policies that can.
    """
    refuse([(name, policy)], base, frames)
    cached = policy.lookup != "none"
    changes = OWN | UNHURRIED | _changes(policy, UNLIMITED_BYTES if policy.unlimited else room_bytes)
    return ServedPolicy(Settings(**(base.model_dump() | changes)), "auto" if cached else "off")


def refuse(policies: Iterable[tuple[str, PolicySettings]], base: Settings, frames: int = 1) -> None:
    """Raise ConfigurationError for the first policy that the services cannot serve."""
    for name, policy in policies:
        if reason := why_not(policy, base, frames):
            named = ", ".join(servable(base, frames))
            raise ConfigurationError(
                f"policy {name!r}: cannot be served on real models: {reason}; these shipped policies can: {named}"
            )


def servable(base: Settings, frames: int = 1) -> Sequence[str]:
    """Return the shipped policies that the services can serve."""
    return [name for name in shipped() if not why_not(read_policy(name), base, frames)]


def why_not(policy: PolicySettings, base: Settings, frames: int = 1) -> str:
    """Return the reason why the services cannot serve the policy; empty if they can."""
    if policy.lookup == "none":
        return ""
    if policy.lookup == "text":
        return "the services return a stored image only for the same text and seed, and traces have no seeds"
    if policy.reuses == "picture":
        return "the services never return the image of another prompt unchanged"
    if policy.pairs and frames == 1:
        return "only clips have pairs, and the trace has images"
    if policy.pairs and not (base.segmenter and base.extractor):
        return "pairs need a segmenter and an extractor; name one of each (settings segmenter, extractor)"
    if policy.reuses == "refine" and frames > 1:
        return "clips start from latents alone"
    if policy.refit_requests:
        return "the services' SVM decides itself when it is fitted (refit_requests must be 0)"
    if policy.raised_by:
        return "the services start from images by measured tables only (raised_by must be 0)"
    if policy.reuses == "refine":
        if policy.insert_on_hit or base.small:
            return ""
        return "the services recognize images of hits by their model; name a model for hits (small)"
    known = LATENT_EVICTIONS
    return "" if policy.evict in known else f"the services evict latents by {', '.join(known)}, not by {policy.evict}"


def _changes(policy: PolicySettings, room_bytes: int) -> dict[str, Any]:
    """Return the settings that differ between policies."""
    whole = {"decouple": "off", "segmenter": ""}
    if policy.lookup == "none":
        return whole | {"cache_max_bytes": 0, "capture_steps": (), "image_tier": "off", "small": ""}
    alike = ({"decouple": "video"} if policy.pairs else whole) | {
        "candidates": policy.candidates,
        "further_candidates": policy.further_candidates,
        "predictor": policy.predictor,
        "sketch_margin": SKETCH_MARGIN,
        "lcbfu_initial_uses": policy.initial_uses,
    }
    if policy.reuses == "refine":  # a window of finished images, and no latents
        return alike | {
            "image_tier": "all" if policy.insert_on_hit else "large",
            "picture_policy": policy.evict,
            "picture_max_bytes": room_bytes,
            "picture_max_count": UNLIMITED_BYTES,
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
        **({"keyframe_least": policy.keyframe_least} if policy.state_codec == "keyframes" else {}),
    }
