"""The monitor makes a switch only where the switch pays back."""

from __future__ import annotations

import pytest

from services.global_monitor.allocation.fleet import Capacity
from services.global_monitor.allocation.payback import Stage, done, expected_s, pays_back
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.decision import Decision
from tests.unit.global_monitor.conftest import Town


def test_switches_that_cannot_pay_back_are_not_made() -> None:
    """.36 misses and 1.62 · 1.2 hits a minute are more than 2 large workers do, but a batch of one takes a minute to
    drain: longer than a period of half a minute, and worth it within three."""
    for period_s, large in ((30.0, 2), (180.0, 1)):
        town = Town(2, smalls=("sana",), period_s=period_s)
        decision = town.run(12, 4, 0.9)
        assert decision.target.large == 1
        assert decision.count("large") == large
        assert bool(decision.kept) == (large == 2), decision.kept
        if large == 2:
            assert decision.kept == "1 × 30 s of switching would not pay back within 30 s"


class SlowTown(Town):
    """Workers that need a minute to change their model."""

    def decide(self) -> Decision:
        decision = self.monitor.decide(self.at)
        self.decisions.append(decision)
        self._changes = {name: (self.at + 60, decision.models[name]) for name in decision.switches}
        return decision

    def report(self) -> None:
        for name, (at, model) in getattr(self, "_changes", {}).items():
            self.models[name] = model if self.at >= at else self.models[name]
        super().report()


def test_a_switch_back_up_is_made_once_its_demand_has_lasted_as_long_as_it_needs_to_pay_back() -> None:
    """h = .9, k = 5: 59 a minute need sana. 24 a minute are 21.8 full generations; sdxl on 9 workers beside 7 large
    ones does 25. A minute with 7 workers leaves 14.8 undone, 3.2 are caught up in each minute after it: 340 s."""
    town = SlowTown(headroom=0.1, catch_up_s=600.0)
    assert town.run(30, 59, 0.9, 5).target.small == "sana"
    before = len(town.decisions)
    last = town.run(60, 24, 0.9, 5)
    assert (last.target.small, last.count("large"), last.count("sdxl")) == ("sdxl", 8, 8)
    kept = [one.kept.rpartition("within ")[2] for one in town.decisions[before:] if one.target.small == "sdxl"]
    assert kept[:2] == ["180 s", ""]
    smalls = [max(("sdxl", "sana"), key=one.count) for one in town.decisions[before:]]
    assert smalls == sorted(smalls)  # sana, then sdxl for good


def test_a_switch_that_needs_longer_than_waiting_work_may_take_is_never_made() -> None:
    town = SlowTown(headroom=0.1, catch_up_s=240.0)
    town.run(30, 59, 0.9, 5)
    last = town.run(60, 24, 0.9, 5)
    assert (last.target.small, last.count("sdxl")) == ("sdxl", 0)
    assert last.kept.endswith("within 240 s")


def test_a_demand_is_expected_to_last_as_long_as_it_has_lasted_within_what_waiting_work_may_take() -> None:
    assert [expected_s(wanted, 180.0, 600.0) for wanted in (0, 180, 360, 540, 900)] == [180, 360, 540, 600, 600]
    assert expected_s(900, 180.0, 0.0) == 180


def test_payback_by_hand() -> None:
    """Two large workers of 1 generation a minute; 1 miss and 4 hits a minute. One becomes small (4 a minute), a minute
    is lost: 2 · 3 = 6 before; 1 · 3 + 4 · 2 = 11 after, of which misses 3 and hits 8. Where hits are for the small one
    alone, one large and 15 small draw two thirds of 1.5 misses and as much of 60 hits; two and 14 draw 56 of those."""
    work = Workload(1, 4)
    before = Stage(3, Capacity(2, 0), large_refines=True)
    during, after = Stage(1, Capacity(1, 0), large_refines=True), Stage(2, Capacity(1, 4), large_refines=True)
    assert done((before,), work) == 6
    assert done((during, after), work) == 11
    assert pays_back(before, during, after, work, better=False)
    one, two = Stage(1, Capacity(1, 60), large_refines=False), Stage(1, Capacity(2, 56), large_refines=False)
    assert done((one,), Workload(1.5, 60)) == pytest.approx(41)
    assert done((two,), Workload(1.5, 60)) == pytest.approx(56 / 60 * 61.5)
    late = Stage(2.9, Capacity(1, 0), large_refines=True), Stage(0.1, Capacity(1, 4), large_refines=True)
    assert not pays_back(before, *late, work, better=False)
    assert not pays_back(before, Stage(3, Capacity(1, 0), True), Stage(0, Capacity(1, 4), True), work, better=True)


def test_better_pictures_are_worth_it_as_long_as_nothing_is_left_undone() -> None:
    before = Stage(3, Capacity(1, 4), large_refines=True)
    during, after = Stage(1, Capacity(1, 0), large_refines=True), Stage(2, Capacity(2, 0), large_refines=True)
    assert pays_back(before, during, after, Workload(0.5, 1), better=True)
    assert not pays_back(before, during, after, Workload(0.5, 1), better=False)
    assert not pays_back(before, during, after, Workload(1, 2), better=True)
