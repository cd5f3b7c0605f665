"""Seconds per step of a model, measured by `afterimage profile`: in the catalog, and in `latency.json` beside the
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
"""Kind of latencies in the catalog."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one request alone, in seconds."""

    step_s: float
    decode_s: float
    measured: tuple[str, ...]
    """Conditions: image size, threads, device. Only latencies under equal conditions can be compared."""
    here: bool = False
    """True: measured by this deployment's own profile, not shipped with the model from another machine."""

    def comparable(self, other: Latency) -> bool:
        return self.measured == other.measured


def read_latency(card: ModelCard) -> Latency | None:
    """Read the latency beside the weights; None if there is none or the file is not a latency."""
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
    """Return the latencies measured here with these weights, then the shipped ones.

    The caller picks those that can be compared with the other model's."""
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
