"""A bound within the limits of live checks."""

from __future__ import annotations

from services.retriever.bounds import IMAGE, LATENT, Near, TableBound
from services.retriever.checked_bound import checked
from shared.models.k_table import FIG_10
from shared.models.live_checks import Cell, Checks

BOUND = TableBound({50: FIG_10})
EDIT, TOPIC = (Near(LATENT, 0.97, relation, run_by="large") for relation in ("edit", "topic"))
FAR = Near(LATENT, 0.2, "edit", run_by="large")


def stopped(*cells: Cell, everything: float = 0.0) -> Checks:
    return Checks(Cell(checks=40, fails=20, stopped_at=everything), cells)


def test_nothing_stopped_leaves_the_bound_as_it_is() -> None:
    assert checked(BOUND, stopped(Cell("edit", LATENT, 50, 15))) is BOUND


def test_a_stopped_cell_leaves_the_steps_before_its_k() -> None:
    bound = checked(BOUND, stopped(*(Cell("edit", LATENT, 50, k, 30, 12, stopped_at=1.0) for k in (20, 15))))
    assert bound.latest([EDIT, TOPIC, FAR], 50) == [14, 25, 0]
    assert "after step 15 of 50 and later (edit), because 12 of 30 hits" in bound.source(EDIT)
    assert bound.source(TOPIC) == ""
    assert bound.why_not([FAR], 50) == BOUND.why_not([FAR], 50)
    assert (bound.noise(50), bound.note(EDIT)) == (BOUND.noise(50), BOUND.note(EDIT))
    assert checked(BOUND, stopped(Cell("edit", IMAGE, 50, 5, stopped_at=1.0))).latest([EDIT], 50) == [25]


def test_all_hits_stopped_leave_no_start_and_the_plan_says_why() -> None:
    bound = checked(BOUND, stopped(everything=1.0))
    assert bound.latest([EDIT, TOPIC], 50) == [0, 0]
    assert (
        bound.why_not([EDIT], 50)
        == "not used: live checks stopped all starts, because 20 of 40 hits were worse than from noise"
    )
