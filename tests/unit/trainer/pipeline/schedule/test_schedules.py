"""Tables of actions: the slots that the paper's figures have, dependencies, limits on held micro-batches."""

from __future__ import annotations

import pytest

from services.trainer.pipeline.schedule.list_scheduling import Task, list_schedule
from services.trainer.pipeline.schedule.schedules import (
    Action,
    Pass,
    Schedule,
    bidirectional,
    candidates,
    gpipe,
    one_forward_one_backward,
    paired_rounds,
    slots,
)
from services.trainer.pipeline.schedule.simulation import StageTimes, peak_bytes, simulate
from shared.domain.errors import InvalidRequestError


def row(schedule: Schedule, place: int) -> str:
    """Return a row as F0 F1 B0 …; passes of the up pipeline in lower case."""
    letters = {Pass.SELF_CONDITIONING: "C", Pass.FORWARD: "F", Pass.BACKWARD: "B"}
    names = [f"{letters[one.kind]}{one.micro_batch}" for one in schedule.places[place]]
    return " ".join(
        name.lower() if one.pipeline else name for name, one in zip(names, schedule.places[place], strict=True)
    )


def test_1f1b_warms_up_then_alternates() -> None:
    """Fig. 2 by its caption: stage s starts S − s forward passes, then one backward and one forward in turn."""
    table = one_forward_one_backward(4, 4)
    assert row(table, 0) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert row(table, 1) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert row(table, 3) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert row(one_forward_one_backward(2, 4), 0) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert row(gpipe(2, 2, self_conditioning=True), 1) == "C0 C1 F0 F1 B0 B1"


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 9])
def test_1f1b_and_gpipe_take_two_slots_for_each_micro_batch_and_later_stage(stages: int, micro_batches: int) -> None:
    """2·(M + S − 1): the forward and backward stages on the critical path (§4.1)."""
    expected = 2 * (micro_batches + stages - 1)
    assert slots(one_forward_one_backward(stages, micro_batches)) == expected
    assert slots(gpipe(stages, micro_batches)) == expected


def test_the_bidirectional_table_of_fig_3_has_18_slots() -> None:
    """Fig. 3: four micro-batches down from device 0, four up from device 3. Each device idles in two of 18 slots."""
    table = bidirectional(4, 4)
    assert slots(table) == 18
    assert paired_rounds(4, 4) == 6
    assert [len(one) for one in table.places] == [16] * 4
    assert row(table, 0).startswith("F0 F1")
    assert row(table, 3).startswith("f0 f1")
    mirror = [[(one.kind, 1 - one.pipeline, one.stage, one.micro_batch) for one in line] for line in table.places[::-1]]
    assert mirror == [[(one.kind, one.pipeline, one.stage, one.micro_batch) for one in line] for line in table.places]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 5), (4, 3), (4, 4), (4, 8), (6, 4), (6, 6), (8, 8)])
def test_m_cdm_is_the_sum_of_both_minus_half_the_stages(stages: int, micro_batches: int) -> None:
    """Even S, M_d = M_u ≥ S/2: M_CDM = M_d + M_u − S/2."""
    assert paired_rounds(stages, micro_batches) == 2 * micro_batches - stages / 2


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 5), (4, 8)])
def test_self_conditioning_adds_a_slot_per_micro_batch(stages: int, micro_batches: int) -> None:
    """The bound of eq. 18 has 3·(M + S − 1) slots; passes of later micro-batches fill the first stages' waits."""
    table = one_forward_one_backward(stages, micro_batches, self_conditioning=True)
    assert 3 * micro_batches + 2 * (stages - 1) <= slots(table) <= 3 * (micro_batches + stages - 1)
    feedback = Action(Pass.SELF_CONDITIONING, 0, stages - 1, 2)
    assert table.needs(Action(Pass.FORWARD, 0, 0, 2)) == (feedback,)


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("pipelines", [1, 2])
def test_every_candidate_runs_every_pass_once_and_holds_few_micro_batches(
    pipelines: int, self_conditioning: bool
) -> None:
    stages, micro_batches = 3, 6
    kinds = 3 if self_conditioning else 2
    for table in candidates(stages, micro_batches, pipelines, self_conditioning):
        passes = [action for line in table.places for action in line]
        assert len(set(passes)) == len(passes) == pipelines * stages * micro_batches * kinds
        assert all(table.place_of(action) == at for at, line in enumerate(table.places) for action in line)
        held = [peak_bytes(table, lambda one, at=at: float(one.pipeline == at)) for at in range(pipelines)]  # type: ignore[misc]
        assert all(held[0][stage] <= 2 * (stages - stage) - 1 for stage in range(stages))
        if pipelines == 2:
            assert all(held[1][stages - 1 - stage] <= 2 * (stages - stage) - 1 for stage in range(stages))
    assert peak_bytes(one_forward_one_backward(3, 6), lambda _: 1.0) == (3, 2, 1)
    assert peak_bytes(gpipe(3, 6), lambda _: 1.0) == (6, 6, 6)


def test_a_table_with_a_cycle_and_wrong_numbers_are_errors() -> None:
    one = one_forward_one_backward(2, 1)
    turned = Schedule("turned", 2, 1, False, (one.places[0][::-1], one.places[1]))
    times = {(0, stage): StageTimes(1, 1) for stage in range(2)}
    with pytest.raises(RuntimeError, match="the table of turned has a cycle: 4 actions cannot start"):
        simulate(turned, times)
    with pytest.raises(InvalidRequestError, match="stages: must be at least 1"):
        one_forward_one_backward(0, 1)
    with pytest.raises(InvalidRequestError, match="micro_batches: must be at least 1"):
        bidirectional(2, 0)
    with pytest.raises(RuntimeError, match="no task can start"):
        list_schedule({"a": Task(0, ("b",), (0,)), "b": Task(0, ("a",), (0,))}, 1, {})
