"""How long a model's steps and pictures take, as `afterimage profile` measured it, for workers in virtual time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from shared.domain.errors import ConfigurationError
from shared.models.card_lookup import find_card
from shared.models.latency import FILE

STEPS = 50


@dataclass(frozen=True)
class Profile:
    """Seconds of a model on one worker: of a step by rows in the batch, and of decoding a picture, which the batch
    waits for; bringing one into a latent takes as long (a VAE's halves are about alike)."""

    model: str
    rows: tuple[int, ...]
    """Rising."""
    step_s: tuple[float, ...]
    decode_s: float = 0.0

    def of(self, rows: int) -> float:
        """Seconds of one step; between what was measured as on a line, beyond it as much more per row as at its end."""
        return _seconds(self.rows, self.step_s, rows)

    def alone_s(self, steps: int = STEPS) -> float:
        """Of a picture from noise on an idle worker: what SLOs are multiples of (MoDM §6)."""
        return steps * self.of(1) + self.decode_s

    def share_s(self, rows: int, steps: int = STEPS) -> float:
        """Of the worker's time that a request takes in a batch of so many."""
        return steps * self.of(rows) / rows + self.decode_s


@lru_cache(maxsize=1024)
def _seconds(measured: tuple[int, ...], step_s: tuple[float, ...], rows: int) -> float:
    if rows <= measured[-1] or len(measured) == 1:
        return float(np.interp(rows, measured, step_s)) * max(1.0, rows / measured[-1])
    slope = (step_s[-1] - step_s[-2]) / (measured[-1] - measured[-2])
    return step_s[-1] + slope * (rows - measured[-1])


def read_profile(name: str) -> Profile:
    """`latency.json` beside a model's weights (bundled:NAME, a folder, a hub id), or a file like it (.json).

    Raises ConfigurationError where there is none, or it is no latency; ModelError for a model that is not there.
    """
    path = Path(name) if name.endswith(".json") else find_card(name).folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        by_rows = sorted((int(rows), float(seconds)) for rows, seconds in found["step_s"].items())
        decode_s = float(found["decode_s"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"profile {name!r}: no measured latency in {path} ({error!r})") from error
    if not by_rows or by_rows[0][0] < 1 or min(seconds for _, seconds in by_rows) <= 0 or decode_s < 0:
        raise ConfigurationError(f"profile {name!r}: {path} has no step of a positive time")
    rows, seconds = zip(*by_rows, strict=True)
    return Profile(path.parent.name if name.endswith(".json") else find_card(name).name, rows, seconds, decode_s)


def slo_s(profile: Profile, steps: int, times: Sequence[float]) -> list[float]:
    """Seconds that a request may take: multiples of a picture drawn alone (MoDM §6: 2 and 4)."""
    return [multiple * profile.alone_s(steps) for multiple in times]
