"""Live checks: verdicts on hits against the same requests from noise, and the tests that stop reuse.

The catalog keeps one record per model and weights among its profiles. The cache maintainer writes the records, and the
retriever obeys them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shared.models.confidence import moment_bounds
from shared.models.quality import Measures
from shared.runtime.telemetry import log

KIND = "live_checks"
"""Kind of the records among the catalog's profiles."""
LIMITS: Mapping[str, float] = {"score": 0.85, "contrast": 0.7, "saturation": 0.7, "sharpness": 0.7}
"""Least share of each measure from noise that a passing hit keeps. bench/live_checks.py measures how often good hits
fail."""
HEALTHY = 0.1
"""Largest share of failed checks at which reuse is in force; good hits fail less often."""
RATES = (0.2, 0.35, 0.5, 0.8)
"""Shares of failures that the tests bet on."""
ERROR = 1e-4
"""Largest probability that the tests of one record ever stop reuse although hits fail at most as often as HEALTHY."""
MOST = 1e15
"""Largest value of a part of the evidence, which JSON can hold. A capped bet gains less, so it stays valid."""


def failures(hit: Measures, noise: Measures) -> tuple[str, ...]:
    """Return the measures of which the hit keeps less than LIMITS; empty: the hit passes."""
    kept = {name: (getattr(hit, name), getattr(noise, name)) for name in LIMITS}
    return tuple(
        name
        for name, (value, against) in kept.items()
        if value is not None and against is not None and value < LIMITS[name] * against
    )


def _left(checks: int) -> float:
    """Return the share of the bet that is kept for failures that begin after so many checks."""
    return 1 / math.log2(checks + 2)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A bet against "at most HEALTHY of the checks fail", valid after any number of checks.

    Each possible beginning of a defect and each rate of RATES gets a share of the bet, and gains the ratio of the two
    likelihoods. While hits fail at most as often as HEALTHY, the value is a supermartingale that begins at 1. The
    probability that the value ever exceeds v is then at most 1/v (Ville 1939). A defect may begin after any number of
    good checks.
    """

    checks: int = 0
    parts: tuple[float, ...] = (0.0,) * len(RATES)

    @property
    def value(self) -> float:
        return fmean(self.parts) + _left(self.checks)

    def after(self, failed: bool) -> Evidence:
        joining = _left(self.checks) - _left(self.checks + 1)
        gains = ((rate / HEALTHY if failed else (1 - rate) / (1 - HEALTHY)) for rate in RATES)
        parts = (min((part + joining) * gain, MOST) for part, gain in zip(self.parts, gains, strict=True))
        return Evidence(self.checks + 1, tuple(parts))


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the checks: of a hit's measure, of that from noise, of their squares, and of their product."""

    hit: float = 0.0
    noise: float = 0.0
    hit_squared: float = 0.0
    noise_squared: float = 0.0
    product: float = 0.0

    def plus(self, hit: float, noise: float) -> Sums:
        more = (hit, noise, hit * hit, noise * noise, hit * noise)
        return Sums(*(getattr(self, one.name) + by for one, by in zip(fields(self), more, strict=True)))

    def ratio(self, checks: int) -> tuple[float, float, float]:
        """Return hit ÷ noise and its 95 % one-sided bounds; nan without a value, infinite bounds below three checks."""
        value = self.hit / self.noise if self.noise else math.nan
        if checks < 3:
            return value, -math.inf, math.inf
        mean, reference = self.hit / checks, self.noise / checks

        def spread(total: float, product: float) -> float:
            return max((total - checks * product) / (checks - 1), 0.0)

        spreads = spread(self.hit_squared, mean**2), spread(self.noise_squared, reference**2)
        shared = (self.product - checks * mean * reference) / (checks - 1)
        return value, *moment_bounds(checks, mean, reference, *spreads, shared)


@dataclass(frozen=True, slots=True)
class Cell:
    """The checks of one relation, source and K of T; the cell of all hits names none of them."""

    relation: str = ""
    source: str = ""
    """latent | image"""
    steps: int = 0
    """T of the runs."""
    start_step: int = 0
    """K of the runs."""
    checks: int = 0
    fails: int = 0
    evidence: Evidence = Evidence()
    sums: Mapping[str, Sums] = field(default_factory=dict)
    """By the measures of LIMITS."""
    stopped_at: float = 0.0
    """Unix seconds; 0: in force."""

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.relation, self.source, self.steps, self.start_step

    def after(self, hit: Measures, noise: Measures, limit: float, now: float) -> Cell:
        """Return the cell with one more check; it stops where the evidence reaches `limit`."""
        failed, sums = bool(failures(hit, noise)), dict(self.sums)
        for name in LIMITS:
            value, against = getattr(hit, name), getattr(noise, name)
            if value is not None and against is not None:
                sums[name] = sums.get(name, Sums()).plus(value, against)
        evidence = self.evidence.after(failed)
        stopped_at = self.stopped_at or (now if evidence.value >= limit else 0.0)
        checks, fails = self.checks + 1, self.fails + failed
        return replace(self, checks=checks, fails=fails, evidence=evidence, sums=sums, stopped_at=stopped_at)


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of one model's hits; the evidence is that of one test over all hits, and of one per cell.

    The test of all hits may err with half of ERROR. The i-th cell, in order of their first checks, may err with the
    other half ÷ i·(i + 1), so that all tests together err at most with ERROR.
    """

    all: Cell = Cell()
    cells: tuple[Cell, ...] = ()

    def after(self, place: tuple[str, str, int, int], hit: Measures, noise: Measures, now: float) -> Checks:
        """Return the record with one more check of a hit with this relation, source, T and K."""
        cells = {cell.place: cell for cell in self.cells}
        cells.setdefault(place, Cell(*place))
        number = list(cells).index(place) + 1
        cells[place] = cells[place].after(hit, noise, 2 / ERROR * number * (number + 1), now)
        return Checks(self.all.after(hit, noise, 2 / ERROR, now), tuple(cells.values()))

    @property
    def stopped(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in (self.all, *self.cells) if cell.stopped_at)

    def first_stopped(self, relation: str, source: str, steps: int) -> Cell | None:
        """Return the cell from whose K on no run of T = `steps` may start any more; None: all starts are in force."""
        places = (relation, source, steps), Cell().place[:3]
        here = [cell for cell in self.stopped if cell.place[:3] in places]
        return min(here, key=lambda cell: cell.start_step, default=None)


_ADAPTER: TypeAdapter[Checks] = TypeAdapter(Checks)


def checks_to_json(checks: Checks) -> dict[str, Any]:
    value: dict[str, Any] = _ADAPTER.dump_python(checks, mode="json")
    return value


def checks_from_json(value: Mapping[str, Any] | None) -> Checks:
    """Read a record; a missing record, or one that only another version can read, is one without checks."""
    try:
        return Checks() if value is None else _ADAPTER.validate_python(value)
    except ValidationError as error:
        log("live_checks").warning("live checks not read", error=str(error))
        return Checks()


def newly_stopped(before: Checks, after: Checks) -> Iterable[Cell]:
    """Yield the cells that the last check stopped."""
    known = {cell.place for cell in before.stopped}
    return (cell for cell in after.stopped if cell.place not in known)
