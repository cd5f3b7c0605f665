"""A bound within the limits of live checks: no start where too many hits were worse than from noise."""

from __future__ import annotations

from collections.abc import Sequence

from services.retriever.bounds import Bound, Near
from shared.models.live_checks import Cell, Checks


def checked(bound: Bound, checks: Checks) -> Bound:
    """Return the bound within the limits of these checks; the bound itself while they stopped nothing."""
    return CheckedBound(bound, checks) if checks.stopped else bound


class CheckedBound(Bound):
    """Any bound, without the starts that live checks stopped: K and later K of a relation, source and T, or all."""

    def __init__(self, bound: Bound, checks: Checks) -> None:
        self._bound, self._checks = bound, checks

    def latest(self, near: Sequence[Near], steps: int) -> list[int]:
        allowed = self._bound.latest(near, steps)
        return [self._within(one, steps, k) for one, k in zip(near, allowed, strict=True)]

    def noise(self, steps: int, varied: bool = False) -> bool:
        return self._bound.noise(steps, varied)

    def why_not(self, near: Sequence[Near], steps: int) -> str:
        stopped = [self._first_stopped(one, steps) for one in near]
        if not any(cell and any(self._bound.latest([one], steps)) for cell, one in zip(stopped, near, strict=True)):
            return self._bound.why_not(near, steps)
        return next(f"not used: {_in_words(cell)}" for cell in stopped if cell is not None)

    def note(self, near: Near) -> str:
        return self._bound.note(near)

    def source(self, near: Near) -> str:
        said = (
            self._bound.source(near),
            *(f"L{_in_words(cell)[1:]}." for cell in self._checks.stopped if _of(cell, near)),
        )
        return " ".join(filter(None, said))

    def _first_stopped(self, near: Near, steps: int) -> Cell | None:
        return self._checks.first_stopped(near.relation, near.kind, steps)

    def _within(self, near: Near, steps: int, k: int) -> int:
        cell = self._first_stopped(near, steps)
        return k if cell is None or k < cell.start_step else max(cell.start_step - 1, 0)


def _of(cell: Cell, near: Near) -> bool:
    return cell.source == near.kind and near.relation in ("", cell.relation)


def _in_words(cell: Cell) -> str:
    fails = f"{cell.fails} of {cell.checks} hits were worse than from noise"
    if not cell.steps:
        return f"live checks stopped all starts, because {fails}"
    relation = f" ({cell.relation})" if cell.relation else ""
    return (
        f"live checks stopped starts after step {cell.start_step} of {cell.steps} and later{relation}, because {fails}"
    )
