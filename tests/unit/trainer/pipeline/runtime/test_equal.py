"""A plan on real ranks (gloo) trains as one process does: losses and weights over 20 iterations of SGD.

With one device per stage the gradients of the micro-batches add up in the order of one process that accumulates them,
and results are bit-identical. Replicas sum their gradients in another order, and a frozen layer on part of a batch may
take another kernel: there, 1e-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.trainer.pipeline.runtime.rank_pool import RankPool
from tests.unit.trainer.pipeline.runtime.tiny_jobs import Case, new_job, plan_of, profile_of, run_alone

CLOSE = 1e-5
FEW = 4
"""Iterations where four ranks share two processors."""
UNFILLED = Case(fill=False)
BUCKETS = Case(sizes=(8, 6))
PARTIAL = Case("controlnet twice", batch=16, frozen_s=1.0, self_conditioning=0.5)
BOTH_WAYS = Case("cascade")
REPLICATED = Case("unet twice", ranks=4, batch=16, self_conditioning=0.5, iterations=FEW)
GROUPS = Case("unet", ranks=4, group=2, batch=16, iterations=FEW)
MEASURED = Case("controlnet", iterations=FEW, measured=True, recompute=True)
UNEQUAL = Case("unet", ranks=3, batch=16, equal_replicas=False, iterations=FEW)
LATE = Case("late", iterations=FEW, accumulate=2)
LONG = Case("controlnet", ranks=4, stages=4, micro_batches=4, batch=16, iterations=FEW)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    found = RankPool()
    yield found
    found.close()


@pytest.mark.parametrize(
    "case",
    [UNFILLED, BUCKETS, PARTIAL, BOTH_WAYS, MEASURED, LATE, REPLICATED, UNEQUAL, GROUPS, LONG],
    ids=[
        "1f1b",
        "filled",
        "partial, twice",
        "bidirectional",
        "measured",
        "late layers",
        "replicas",
        "unequal replicas",
        "groups",
        "four stages",
    ],
)
def test_ranks_train_as_one_process_does(pool: RankPool, case: Case) -> None:
    found, alone = pool.run(case), run_alone(case)
    for rank in found:
        assert rank.losses == pytest.approx(alone.losses, abs=CLOSE)
        assert rank.norms == pytest.approx(alone.norms, rel=1e-4)
        assert rank.evaluated == pytest.approx(alone.evaluated, abs=CLOSE)
        for name, values in rank.parameters.items():
            assert np.abs(values - alone.parameters[name]).max() <= CLOSE, name
    assert set(found[0].parameters) == set(alone.parameters), "gathered on the first rank"
    for rank in found[1:]:
        assert len(rank.parameters) < len(alone.parameters) or case.job == "late", "each stage is on its own ranks"


@pytest.mark.parametrize(
    "case",
    [UNFILLED, replace(BOTH_WAYS, fill=False), replace(UNFILLED, mixed=True)],
    ids=["1f1b", "bidirectional", "bfloat16"],
)
def test_stages_of_one_device_are_bit_identical_to_accumulated_micro_batches(pool: RankPool, case: Case) -> None:
    case = replace(case, iterations=FEW)
    found, alone = pool.run(case), run_alone(case, case.micro_batches)
    for rank in found:
        assert rank.losses == alone.losses
        assert all(np.array_equal(values, alone.parameters[name]) for name, values in rank.parameters.items())


def test_the_cases_have_what_their_names_say() -> None:
    partial_sizes = set()
    for case in (BUCKETS, PARTIAL):
        training = new_job(case)
        plan = plan_of(training, case, profile_of(training, case))
        for one in plan.iterations:
            assert one.filling is not None
            assert one.filling.bubbles
            partial_sizes |= {piece.samples for bubble in one.filling.bubbles for piece in bubble.pieces}
    assert min(partial_sizes) < PARTIAL.batch
    training = new_job(REPLICATED)
    assert plan_of(training, REPLICATED, profile_of(training, REPLICATED)).cut.replicas == (2, 2)
    training = new_job(UNEQUAL)
    assert plan_of(training, UNEQUAL, profile_of(training, UNEQUAL)).cut.replicas in ((1, 2), (2, 1))
    training = new_job(BOTH_WAYS)
    assert {one.schedule.name for one in plan_of(training, BOTH_WAYS, profile_of(training, BOTH_WAYS)).iterations} == {
        "bidirectional"
    }
