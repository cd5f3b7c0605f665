"""What breaks a cluster does so in the middle of something, and leaves nothing behind."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from scripts.stack.servers import StackError
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size
from tests.faults.cluster import SHORT
from tests.faults.killing import Killer, in_the_middle
from tests.faults.load import Load
from tests.faults.test_verdict import WELL
from tests.faults.verdict import Answer, judge

REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=50, guidance=2.0, seed=1)
JOB = Job("j", REQUEST, Plan(PlanSource.NOISE, "large"), JobState.RUNNING, worker="host-12", checkpoint_step=10)
PIDS = {"gpu_worker-1": 2, "gpu_worker-2": 12}


def test_the_first_to_die_is_a_worker_whose_job_can_go_on() -> None:
    assert in_the_middle([replace(JOB, worker="host-2", checkpoint_step=0), JOB], PIDS) == "gpu_worker-2"


@pytest.mark.parametrize("changes", [{"checkpoint_step": 0}, {"checkpoint_step": 45}, {"worker": "host-3"}])
def test_nobody_dies_for_a_job_that_could_not_show_a_resume(changes: dict[str, Any]) -> None:
    assert in_the_middle([replace(JOB, **changes)], PIDS) is None


@dataclass
class Slow:
    """A service that takes its time to start, or never does."""

    starts: bool
    alive: bool = True
    tries: list[float] = field(default_factory=list)

    def start(self) -> None:
        self.tries.append(time.monotonic())
        if not self.starts:
            raise StackError("does not start")
        time.sleep(0.3)
        self.alive = True


class Two:
    def __init__(self) -> None:
        self.processes = {"gateway-1": Slow(starts=False), "gateway-2": Slow(starts=True)}

    def names(self, service: str = "") -> list[str]:
        return list(self.processes)

    def kill(self, name: str) -> None:
        self.processes[name].alive = False


async def test_one_that_does_not_come_back_leaves_no_other_starting() -> None:
    stack: Any = Two()
    killer = Killer(stack, SHORT, random.Random(1))
    for name in stack.processes:
        killer._kill(name)
    with pytest.raises(StackError, match="does not start"):
        await killer.all_back()
    assert killer.away == []
    assert stack.processes["gateway-2"].alive


def nobody_there() -> Load:
    requests = {"one": {"prompt": "a fox"}, "two": {"prompt": "a boat"}}
    load = Load(["127.0.0.1:1", "127.0.0.1:1"], requests, random.Random(1))
    load.answers["one"] = list(WELL.answers["one"])
    return load


async def test_what_is_not_answered_again_in_time_is_named() -> None:
    assert await nobody_there().ask_again(["one"], 1, within_s=0.3) == ["one"]


async def test_another_answer_than_the_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load, given = nobody_there(), WELL.answers["one"][0]

    async def answered(client: object, key: str) -> None:
        load.answers[key].append(given)

    monkeypatch.setattr(load, "_ask", answered)
    assert await load.ask_again(["one"], 1, within_s=5.0) == []
    given = Answer("b", "blue")
    assert await load.ask_again(["one"], 1, within_s=5.0) == ["one"]


def test_a_key_whose_turn_never_came_is_lost() -> None:
    assert judge(replace(WELL, answers=nobody_there().every_answer)).lost == ("two",)
