"""Which step of another schedule has exactly the noise of a stored latent (design §2, Compatibility)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from shared.models.schedules import same_noise_level


def equal_step(sampler: str, config: dict[str, Any], step: int, steps: int, *, total: int) -> int:
    """The step of a run of `total` that a latent after `step` of `steps` can start; 0 when no step has its noise.

    A state of the same T fits its own step. For another T the candidate is K/T rounded either way, checked exactly.
    """
    if steps == total:
        return step
    return _equal_step(sampler, json.dumps(config, sort_keys=True), step, steps, total)


@lru_cache(maxsize=16_384)
def _equal_step(sampler: str, config: str, step: int, steps: int, total: int) -> int:
    near = step * total // steps
    for start in (near, near + 1, near - 1):
        if 0 < start < total and same_noise_level(sampler, json.loads(config), (step, steps), (start, total)):
            return start
    return 0
