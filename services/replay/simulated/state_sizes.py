"""Bytes of the states and masks that a request leaves, by the policy's codec, and the states that others need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from services.cache_maintainer.eviction.levels import of_50
from services.replay.policy import PolicySettings
from services.replay.simulated.policy_inputs import bytes_of_states
from services.replay.traces.clip_bytes import read_clip_bytes
from services.replay.traces.load import Load


class StateSizes:
    """Bytes of each request's states."""

    def __init__(self, load: Load, policy: PolicySettings, *, entries: bool) -> None:
        """entries: the budget counts entries, each of which counts as one byte."""
        self._policy, self._entries = policy, entries
        self._bytes = [1] * len(load.trace) if entries else bytes_of_states(load, policy)
        self._share: Callable[[int, int], float] = cache(policy.share_of_fp16)
        self._clips = read_clip_bytes() if load.trace.frames > 1 and policy.reuses == "latent" else None

    def image(self, request: int) -> int:
        """Return the bytes of the request's fp16 state, or of its image if the policy reuses images."""
        return self._bytes[request]

    def latents(self, request: int, steps: Sequence[int], total: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return the bytes of the states that are coded together, by step of T = `total`, and step → needed step."""
        each = self._bytes[request]
        if self._entries or not steps:
            return dict.fromkeys(steps, each), {}
        if self._clips is None:
            return {step: max(1, round(each * self._share(step, total))) for step in steps}, {}
        step_of = {of_50(step, total): step for step in steps}
        shares = self._clips.states(self._policy.clip_codec, request, step_of)
        sizes = {step: max(1, round(each * shares[k][0])) for k, step in step_of.items()}
        return sizes, {step_of[k]: step_of[needs] for k, (_, needs) in shares.items() if needs}

    def mask(self, request: int) -> int:
        """Return the bytes of the request's masks (FlexCache §4.3); 0 where the budget counts entries."""
        if self._clips is None or self._entries:
            return 0
        return max(1, round(self._bytes[request] * self._clips.mask(request)))
