"""The thread count is found by trying: each machine and batch by itself, and never slower than all cores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.engine.threads import SAMPLES, StepThreads, search
from services.gpu_worker.families.unet import UNetFamily
from shared.domain.types import Size
from shared.runtime.settings import Settings

ONE_PICTURE, EIGHT = 4 * 16 * 16, 8 * 4 * 16 * 16


class Machine:
    """Steps that take what `seconds` says for the count in use."""

    def __init__(self, most: int, seconds: dict[int, float]) -> None:
        self.seconds, self.used, self.now = seconds, list[int](), 0
        self.threads = StepThreads(most, self.use)

    def use(self, threads: int) -> None:
        self.now = threads

    def steps(self, count: int, *, model: str = "large", elements: int = ONE_PICTURE, noise: float = 0.0) -> list[int]:
        used = list[int]()
        for number in range(count):
            self.threads.before(model, elements)
            used.append(self.now)
            late = noise if number % SAMPLES else 0.0
            self.threads.after(model, elements, self.seconds[self.now] + late)
        return used


def test_one_thread_is_taken_where_it_is_faster() -> None:
    machine = Machine(2, {2: 0.061, 1: 0.027})
    assert machine.steps(3 * SAMPLES) == [2] * SAMPLES + [1] * 2 * SAMPLES


def test_all_cores_stay_where_half_are_slower_or_no_faster() -> None:
    assert Machine(2, {2: 0.13, 1: 0.14}).steps(4 * SAMPLES)[2 * SAMPLES :] == [2] * 2 * SAMPLES
    assert Machine(2, {2: 0.13, 1: 0.129}).steps(4 * SAMPLES)[2 * SAMPLES :] == [2] * 2 * SAMPLES


def test_no_count_below_one_that_lost_is_tried() -> None:
    machine = Machine(64, {64: 1.0, 32: 0.8, 16: 0.7, 8: 0.9, 4: 9.0, 2: 9.0, 1: 9.0})
    used = machine.steps(6 * SAMPLES)
    assert used[-SAMPLES:] == [16] * SAMPLES
    assert 4 not in used


def test_each_model_and_amount_of_work_has_its_own() -> None:
    machine = Machine(2, {2: 0.061, 1: 0.027})
    machine.steps(2 * SAMPLES)
    machine.seconds = {2: 0.13, 1: 0.26}
    assert machine.steps(3 * SAMPLES, elements=EIGHT)[-1] == 2
    assert machine.steps(1)[-1] == 1, "one picture again"
    assert machine.steps(1, model="small")[-1] == 2


def test_a_few_slow_steps_do_not_decide() -> None:
    machine = Machine(2, {2: 0.061, 1: 0.027})
    assert machine.steps(3 * SAMPLES, noise=1.0)[-1] == 1


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.001, 10), min_size=5, max_size=5))
def test_what_is_found_is_never_slower_than_all_cores(seconds: dict[int, float]) -> None:
    found = Machine(16, seconds).steps(7 * SAMPLES)[-1]
    assert seconds[found] <= seconds[16]


def test_nothing_is_searched_where_nothing_may_be_chosen() -> None:
    cpu = torch.device("cpu")
    assert search(Settings(torch_threads=1), cpu) is None
    assert search(Settings(batch_invariant=8), cpu) is None
    assert search(Settings(), torch.device("cuda")) is None


def test_a_worker_of_a_cpu_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert search(Settings(), torch.device("cpu")) is not None


def test_the_engine_asks_before_each_step_and_tells_what_it_took(family: UNetFamily) -> None:
    machine = Machine(2, {2: 0.061, 1: 0.027})
    ticks = iter(range(1000))

    def clock() -> float:  # a second passes between two looks at it with two threads, half of one with one
        return next(ticks) * machine.now / 2

    engine = Engine({family.card.name: family}, clock=clock, threads=machine.threads)
    engine.submit(Task("a", family.card.name, "a red fox", Size(64, 64), 4 * SAMPLES, 2.5, seed=7))
    while not engine.idle:
        engine.step()
    assert machine.now == 1
