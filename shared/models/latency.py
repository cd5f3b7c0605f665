"""How long a model's step takes, as `afterimage profile` measured it: in the catalog, and `latency.json` beside the
weights."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.k_table import Profiles
from shared.runtime.telemetry import log

FILE = "latency.json"
KIND = "latency"
"""Under which kind the catalog keeps it."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, for one request alone."""

    step_s: float
    decode_s: float
    measured: tuple[str, ...]
    """Under what: picture size, threads, device. Only what was measured alike can be compared."""
    here: bool = False
    """By a profile of one's own, and not by whoever shipped the model, on a machine that may be another."""

    def comparable(self, other: Latency) -> bool:
        return self.measured == other.measured


def read_latency(card: ModelCard) -> Latency | None:
    """None where nobody measured it, or what lies there is not a latency."""
    if card.is_noop:
        step_s = float(card.noop_options.get("step_ms", 0)) / 1000
        return Latency(step_s, 0.0, ("noop",)) if step_s > 0 else None
    try:
        return _said(card, json.loads((card.folder / FILE).read_bytes()))
    except FileNotFoundError:
        return None
    except (ModelError, OSError, ValueError) as error:
        _ignored(card, error)
        return None


async def load_latencies(profiles: Profiles, card: ModelCard) -> tuple[Latency, ...]:
    """Measured here with these weights, then what lies beside them: which of them can be compared depends on the other
    model's."""
    found = await profiles.get(KIND, card.name, card.weights_hash)
    measured = _said(card, found) if found is not None else None
    shipped = await asyncio.to_thread(read_latency, card)
    return (*((replace(measured, here=True),) if measured else ()), *((shipped,) if shipped else ()))


def _said(card: ModelCard, found: Any) -> Latency | None:
    try:
        measured = (str(found["size"]), str(found["threads"]), str(found.get("device", "cpu")))
        latency = Latency(float(found["step_s"]["1"]), float(found["decode_s"]), measured)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _ignored(card, error)
        return None
    return latency if latency.step_s > 0 and latency.decode_s >= 0 else None


def _ignored(card: ModelCard, error: Exception) -> None:
    log("latency").warning("the measured latency is ignored", model=card.name, error=repr(error))
