"""How long a model's step takes, as `afterimage profile` measured it: `latency.json` beside the weights."""

from __future__ import annotations

import json
from dataclasses import dataclass

from shared.errors import ModelError
from shared.models.card import ModelCard
from shared.telemetry import log

FILE = "latency.json"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, for one request alone."""

    step_s: float
    decode_s: float
    measured: tuple[str, ...]
    """Under what: picture size, threads, device. Only what was measured alike can be compared."""

    def comparable(self, other: Latency) -> bool:
        return self.measured == other.measured


def read_latency(card: ModelCard) -> Latency | None:
    """None where nobody measured it, or what lies there is not a latency."""
    if card.is_noop:
        step_s = float(card.noop_options.get("step_ms", 0)) / 1000
        return Latency(step_s, 0.0, ("noop",)) if step_s > 0 else None
    try:
        found = json.loads((card.folder / FILE).read_bytes())
        measured = (str(found["size"]), str(found["threads"]), str(found.get("device", "cpu")))
        latency = Latency(float(found["step_s"]["1"]), float(found["decode_s"]), measured)
    except FileNotFoundError:
        return None
    except (ModelError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log("latency").warning("the measured latency is ignored", model=card.name, error=repr(error))
        return None
    return latency if latency.step_s > 0 and latency.decode_s >= 0 else None
