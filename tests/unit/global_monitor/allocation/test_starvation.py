"""Turns by hand: who goes where work waits that nobody serves, and when it comes back."""

from __future__ import annotations

import random

import pytest

from services.global_monitor.allocation.starvation import WorkerSlot, turns
from services.global_monitor.decision import Rules
from services.global_monitor.monitor import GlobalMonitor
from shared.domain.messages import WorkerReported

BOUND_S = 30.0
MODELS = ("large", "small", "tiny")


def stand(
    name: str, home: str, told: str = "", since: float | None = 0.0, able: tuple[str, ...] = MODELS
) -> WorkerSlot:
    return WorkerSlot(name, home, told or home, since, frozenset(able))


def at(seconds: float, waits: dict[str, float], *stands: WorkerSlot) -> dict[str, str]:
    return turns(stands, waits, BOUND_S, seconds, "large")


def test_a_worker_alone_goes_over_to_what_waited_long_enough_and_comes_home_when_nothing_waits() -> None:
    home = stand("w", "large")
    assert at(100, {"small": 29}, home) == {}
    assert at(100, {"small": 30}, home) == {"w": "small"}
    away = stand("w", "large", "small", 110)
    assert at(111, {"small": 40}, away) == {"w": "small"}
    assert at(112, {}, away) == {}
    assert at(112, {"large": 5}, away) == {}


def test_lanes_that_always_have_work_share_it_in_turns_of_the_bound() -> None:
    home = stand("w", "large", since=100)
    assert at(129, {"large": 300, "small": 300}, home) == {}
    assert at(130, {"large": 300, "small": 300}, home) == {"w": "small"}
    away = stand("w", "large", "small", 135)
    assert at(164, {"large": 300, "small": 300}, away) == {"w": "small"}
    assert at(165, {"large": 29, "small": 300}, away) == {"w": "small"}  # nobody waits in vain yet
    assert at(165, {"large": 30, "small": 300}, away) == {}


def test_of_three_lanes_the_one_that_waited_longest_is_next() -> None:
    away = stand("w", "large", "small", 100)
    assert at(130, {"large": 40, "small": 300, "tiny": 50}, away) == {"w": "tiny"}
    assert at(130, {"large": 60, "small": 300, "tiny": 50}, away) == {}


def test_a_worker_on_its_way_is_let_arrive_unless_it_cannot() -> None:
    away = stand("w", "large", "small", None)
    assert at(500, {"large": 400}, away) == {"w": "small"}
    assert at(500, {"large": 400}, stand("w", "large", "small", None, able=("large",))) == {}
    assert at(500, {"small": 400}, stand("w", "large", since=None)) == {}
    assert at(500, {"small": 400}, stand("w", "large", able=("large",))) == {}


def test_who_goes_is_one_that_others_do_without() -> None:
    two, small = (stand("a", "large", since=99), stand("b", "large", since=99)), stand("c", "small")
    waits = {"large": 50.0, "small": 50.0, "tiny": 50.0}
    assert at(100, waits, *two, small) == {"a": "tiny"}
    assert at(100, {"large": 50, "tiny": 50}, two[0], small) == {"c": "tiny"}  # its lane is empty
    assert at(100, {"tiny": 50}, two[0], small) == {"c": "tiny"}  # a large one stays where it makes no difference
    assert at(100, {"large": 40, "small": 50, "tiny": 50}, stand("a", "large"), small) == {"a": "tiny"}


def test_a_turn_ends_where_another_worker_has_come_to_run_that_model() -> None:
    away = stand("a", "large", "small", 100)
    assert at(101, {"small": 50}, away, stand("b", "small", since=None)) == {"a": "small"}
    assert at(102, {"small": 50}, away, stand("b", "small", since=101)) == {}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", ["quality", "throughput"])
def test_nothing_is_ever_stranded_and_switching_is_amortised(workers: int, mode: str) -> None:
    """Jobs of 5 s for three models that wait in lanes of their own, workers that hold one model and take 10 s to
    switch: nobody waits longer than the queues and the turns account for, and most of the time is drawn in."""
    switch_s, hour_s, chance = 10.0, 3600.0, random.Random(1)
    rules = Rules("large", ("small", "tiny"), mode=mode, turn_s=BOUND_S)  # type: ignore[arg-type]
    monitor = GlobalMonitor(rules, 0.0)
    running: dict[str, tuple[str, float]] = {f"w{n}": ("large", 0.0) for n in range(workers)}
    queues: dict[str, list[float]] = {model: [] for model in MODELS}
    longest, busy_s, switches = 0.0, 0.0, 0
    steps = tuple((model, 1, 0.1) for model in MODELS)
    for now in map(float, range(int(hour_s))):
        for model in MODELS:
            if chance.random() < workers / 60:
                queues[model].append(now)
        for name, (model, free_at) in running.items():
            monitor.hear(WorkerReported(name, "gpu", model, 0, 1, steps), now)
            if free_at > now:
                continue
            wanted = monitor.models.get(name, model)
            if wanted != model:
                running[name], switches = (wanted, now + switch_s), switches + 1
            elif queues[model]:
                longest = max(longest, now - queues[model].pop(0))
                running[name], busy_s = (model, now + 5.0), busy_s + 5.0
        monitor.look(now)
        if monitor.urgent or now % rules.period_s == 0:
            monitor.decide(now)
        monitor.turn({model: now - queue[0] for model, queue in queues.items() if queue}, now)
    left = sum(map(len, queues.values()))
    assert left < 20 * workers
    assert longest < 300, longest
    assert switches * switch_s < 0.4 * workers * hour_s, switches
    assert busy_s > 0.2 * workers * hour_s
