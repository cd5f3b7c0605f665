"""Cost model of two layouts of a batch, one batch per size or one of all sizes, as measured by `afterimage profile`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.k_table import Profiles
from shared.models.step_regression import Mix, pixels
from shared.runtime.telemetry import log

KIND = "layout_costs"
"""Kind of these costs in the catalog."""
FILE = "layout_costs.json"
TERMS = 4

Weights = tuple[float, ...]
"""Seconds of each term of `groups_terms` or `mixed_terms`, none below 0."""


@dataclass(frozen=True)
class LayoutCosts:
    """Seconds of a step in each layout, both linear in their terms."""

    layout: str
    """Layout of the batch of all sizes: patches or packed."""
    device: str
    """Device that was measured, as in `latency.json`: seconds of different devices do not compare."""
    groups: Weights
    mixed: Weights
    error: float
    """95th percentile of the relative error of `ratio`, on mixes held out of the fit."""
    groups_won: float
    """Share of the measured mixes of several sizes that groups ran faster."""

    def ratio(self, mix: Mix) -> float | None:
        """Return the seconds in one batch as a multiple of those in groups; None where one of the two is not above
        0."""
        groups_s, mixed_s = dot(self.groups, groups_terms(mix)), dot(self.mixed, mixed_terms(mix))
        return mixed_s / groups_s if groups_s > 0 and mixed_s > 0 else None


def groups_terms(mix: Mix) -> list[float]:
    """Return what groups spend time on: batches, batches of one pass, 10⁶ pixels, and pairs of pixels (attention)."""
    return [float(len(mix)), float(sum(count == 1 for _, count in mix)), pixels(mix) / 1e6, _pairs(mix)]


def mixed_terms(mix: Mix) -> list[float]:
    """Return what one batch spends time on: the batch, sizes (attention has one call for each), 10⁶ pixels, and
    pairs of pixels."""
    return [1.0, float(len(mix)), pixels(mix) / 1e6, _pairs(mix)]


def dot(weights: Weights, terms: list[float]) -> float:
    """Return the seconds of these terms."""
    return sum(weight * term for weight, term in zip(weights, terms, strict=True))


def _pairs(mix: Mix) -> float:
    """Return pairs of pixels of the same image, in 10¹²."""
    return sum(count * (width * height * frames / 1e6) ** 2 for (width, height, frames), count in mix)


def costs_to_json(costs: LayoutCosts) -> dict[str, Any]:
    """Return the JSON value stored in the catalog and in `layout_costs.json`."""
    numbers = {"error": costs.error, "groups_won": costs.groups_won}
    weights = {"groups": list(costs.groups), "mixed": list(costs.mixed)}
    return {"layout": costs.layout, "device": costs.device, **weights, **numbers}


def costs_from_json(value: Mapping[str, Any]) -> LayoutCosts:
    """Read what `costs_to_json` wrote. Raises ModelError for anything else."""
    try:
        groups, mixed = (tuple(float(one) for one in value[name]) for name in ("groups", "mixed"))
        error, won = float(value["error"]), float(value["groups_won"])
        costs = LayoutCosts(str(value["layout"]), str(value["device"]), groups, mixed, error, won)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ModelError(f"{FILE}: not the costs of layouts ({cause!r})") from cause
    found = (*costs.groups, *costs.mixed, costs.error, costs.groups_won)
    if not len(costs.groups) == len(costs.mixed) == TERMS or any(not 0 <= one < math.inf for one in found):
        raise ModelError(f"{FILE}: groups and mixed must be {TERMS} numbers from 0 on (got {costs})")
    return costs


async def load_costs(profiles: Profiles, card: ModelCard, layout: str, device: str) -> LayoutCosts | None:
    """Return the costs of these layouts on this device: from the catalog, else from the file beside the weights; None
    if neither has them."""
    stored = await profiles.get(KIND, card.name, card.weights_hash)
    for value in (stored, await asyncio.to_thread(_shipped, card)):
        try:
            costs = costs_from_json(value) if value is not None else None
        except ModelError as error:
            log("layout_costs").warning("the measured costs of layouts are ignored", model=card.name, error=str(error))
            continue
        if costs is not None and (costs.layout, costs.device) == (layout, device):
            return costs
    return None


def _shipped(card: ModelCard) -> Any:
    if card.is_noop:
        return None
    try:
        return json.loads((card.folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
