"""Throughput of each worker with each model, from workers' reports, per kind of device (MoDM §5.3, P_small and
P_large)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from services.global_monitor.demand import GENERATION, Generations

Rates = Mapping[str, float]
"""Full generations per second by model."""


def rates_of(step_s: Iterable[tuple[str, int, float]], generations: Generations | None = None) -> dict[str, float]:
    """Compute rates from step seconds at each batch size; the best rate counts, since batches fill under load."""
    best: dict[str, float] = {}
    for model, rows, seconds in step_s:
        if seconds > 0:
            rate = rows / seconds / (generations or {}).get(model, GENERATION)
            best[model] = max(best.get(model, 0.0), rate)
    return best


def by_kind(claims: Iterable[tuple[str, Rates]]) -> dict[tuple[str, str], float]:
    """Return (kind, model) → median over the workers of that kind."""
    found: dict[tuple[str, str], list[float]] = {}
    for kind, rates in claims:
        for model, rate in rates.items():
            found.setdefault((kind, model), []).append(rate)
    return {key: median(rates) for key, rates in found.items()}
