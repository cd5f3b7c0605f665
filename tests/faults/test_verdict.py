"""The count can fail: each fault, put into a run that is well, is seen and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.domain.types import JobState
from tests.faults.verdict import Answer, Left, judge

WELL = Left(
    answers={"one": [Answer("a", "red")], "two": [Answer("b", "blue"), Answer("b", "blue")]},
    job_of={"one": "a", "two": "b"},
    states={"a": JobState.SUCCEEDED, "b": JobState.SUCCEEDED},
    pictures={"a": "red", "b": "blue"},
    redrawn={"a": "red", "b": "blue"},
    indexed=frozenset({"a"}),
    named={"a": ["states/a-5", "pictures/a"], "b": ["pictures/b"]},
    blobs=frozenset({"states/a-5", "pictures/a", "pictures/b"}),
)
NOTHING = {"lost": 0, "doubled": 0, "stuck": 0, "dangling": 0, "unequal": 0, "unmasked": 0, "dead_letters": 0}


def test_a_run_that_is_well() -> None:
    verdict = judge(WELL)
    assert verdict.clean
    assert verdict.counts() == NOTHING
    assert str(verdict) == "lost 0, doubled 0, stuck 0, dangling 0, unequal 0, unmasked 0, dead letters 0"


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ({"answers": {**WELL.answers, "three": []}}, {"lost": 1}),
        ({"pictures": {"a": "red"}}, {"lost": 1}),
        ({"answers": {**WELL.answers, "two": [Answer("b", "blue"), Answer("b", "green")]}},
         {"doubled": 1, "unequal": 1}),
        ({"answers": {**WELL.answers, "two": [Answer("b", "blue"), Answer("a", "red")]}}, {"doubled": 1}),
        ({"states": {**WELL.states, "c": JobState.SUCCEEDED}}, {"doubled": 1}),
        ({"states": {**WELL.states, "b": JobState.RUNNING}}, {"stuck": 1}),
        ({"states": {**WELL.states, "b": JobState.QUEUED}}, {"stuck": 1}),
        ({"uncached": ["b"]}, {"stuck": 1}),
        ({"blobs": WELL.blobs - {"states/a-5"}}, {"dangling": 1}),
        ({"indexed": frozenset({"a", "gone"})}, {"dangling": 1}),
        ({"named": {**WELL.named, "a": [*WELL.named["a"], "masks/a.mask"]}}, {"dangling": 1}),
        ({"unmasked": ["a", "b"]}, {"unmasked": 2}),
        ({"redrawn": {**WELL.redrawn, "a": "reddish"}}, {"unequal": 1}),
        ({"redrawn": {"b": "blue"}}, {"unequal": 1}),
        ({"answers": {**WELL.answers, "one": [Answer("a", "torn")]}}, {"unequal": 1}),
        ({"dead_letters": 2}, {"dead_letters": 2}),
    ],
)  # fmt: skip
def test_a_fault_is_counted(fault: dict[str, Any], seen: dict[str, int]) -> None:
    verdict = judge(replace(WELL, **fault))
    assert not verdict.clean
    assert verdict.counts() == NOTHING | seen
