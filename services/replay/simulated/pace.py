"""Latency of a model for workers in virtual time, as `afterimage profile` measured it."""

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
    """Measured seconds of a model on one worker: of a step by rows in the batch, and of decoding an image.

    The batch waits while an image is decoded. Encoding an image takes as long, because the halves of a VAE are similar.
    """

    model: str
    rows: tuple[int, ...]
    """Rows of the measured batches, ascending."""
    step_s: tuple[float, ...]
    decode_s: float = 0.0

    def of(self, rows: int) -> float:
        """Return the seconds of one step: linear between the measurements, with the last slope above them."""
        return _seconds(self.rows, self.step_s, rows)

    def alone_s(self, steps: int = STEPS) -> float:
        """Return the seconds of an image from noise on an idle worker. SLOs are multiples of them (MoDM §6)."""
        return steps * self.of(1) + self.decode_s

    def share_s(self, rows: int, steps: int = STEPS) -> float:
        """Return the seconds of worker time that one request takes in a batch of `rows`."""
        return steps * self.of(rows) / rows + self.decode_s


@lru_cache(maxsize=1024)
def _seconds(measured: tuple[int, ...], step_s: tuple[float, ...], rows: int) -> float:
    if rows <= measured[-1] or len(measured) == 1:
        return float(np.interp(rows, measured, step_s)) * max(1.0, rows / measured[-1])
    slope = (step_s[-1] - step_s[-2]) / (measured[-1] - measured[-2])
    return step_s[-1] + slope * (rows - measured[-1])


def read_profile(name: str) -> Profile:
    """Read `latency.json` beside a model's weights (bundled:NAME, a folder, a hub id), or another .json file of the
    same form.

    Raises ConfigurationError for a missing or wrong file, and ModelError for an unknown model.
    """
    path = Path(name) if name.endswith(".json") else find_card(name).folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        by_rows = sorted((int(rows), float(seconds)) for rows, seconds in found["step_s"].items())
        decode_s = float(found["decode_s"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"profile {name!r}: no measured latency in {path} ({error!r}); `afterimage profile` measures one"
        ) from error
    if not by_rows or by_rows[0][0] < 1 or min(seconds for _, seconds in by_rows) <= 0 or decode_s < 0:
        raise ConfigurationError(
            f"profile {name!r}: step_s in {path} needs row counts ≥ 1 with times > 0, and decode_s ≥ 0"
        )
    rows, seconds = zip(*by_rows, strict=True)
    return Profile(path.parent.name if name.endswith(".json") else find_card(name).name, rows, seconds, decode_s)


def slo_s(profile: Profile, steps: int, times: Sequence[float]) -> list[float]:
    """Return the SLOs in seconds: multiples of an image generated alone (MoDM §6: 2 and 4)."""
    return [multiple * profile.alone_s(steps) for multiple in times]
