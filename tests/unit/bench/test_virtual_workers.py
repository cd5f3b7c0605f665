"""Workers in virtual time, by hand: batches, lanes, who refines, drains, and what counts as throughput."""

from __future__ import annotations

import pytest

from bench.virtual_time.virtual_systems import latent, miss, picture, served_together
from services.gpu_worker.models.model_assignment import ModelAssignment
from services.replay.simulated.pace import Profile
from services.replay.simulated.worker_state import Done, Request, Worker
from services.replay.simulated.workers import Workers
from shared.domain.messages import lane_of, refine_lane

SPEEDS = {
    "large": Profile("large", (1, 2), (1.0, 1.5), 2.0),
    "small": Profile("small", (1, 2), (0.25, 0.5), 1.0),
}
PAIR = ("large", "small")


def workers(count: int, done: list[Done], rows: int = 1, served: tuple[str, ...] = PAIR) -> Workers:
    return Workers(served, SPEEDS, count, done.append, max_rows=rows)


def assigned(one: Workers, mode: str, *models: str) -> None:
    both = frozenset(models)
    one.assign(
        {worker.name: ModelAssignment(model, both, mode) for worker, model in zip(one.workers, models, strict=True)}
    )


def run(one: Workers, *requests: Request, until: float = 1000.0) -> list[tuple[str, int]]:
    """What arrived in which lane."""
    lanes: list[tuple[str, int]] = []
    one.run(requests, lambda request, lane: lanes.append((lane, request.number)), until)
    return lanes


def test_a_request_alone_takes_its_steps_its_picture_and_the_way_in() -> None:
    done: list[Done] = []
    one = workers(1, done, served=("large",))
    lanes = run(one, Request(1, 10.0, miss("large")), Request(2, 100.0, latent("large", 20)))
    assert [(each.request.number, each.at, each.steps_run) for each in done] == [(1, 62.0, 50), (2, 132.0, 30)]
    assert lanes == [(lane_of("large"), 1), (lane_of("large"), 2)]
    assert SPEEDS["large"].alone_s() == 52.0
    assert SPEEDS["large"].share_s(2) == 50 * 0.75 + 2.0


def test_requests_join_between_steps_and_a_batch_waits_for_decoding() -> None:
    done: list[Done] = []
    one = workers(1, done, rows=2, served=("large",))
    run(one, Request(1, 0.0, miss("large"), steps=4), Request(2, 1.5, miss("large"), steps=4))
    # two steps alone, two together, the first is decoded in 2 s, and then two more alone
    assert [(each.request.number, each.at) for each in done] == [(1, 2 + 2 * 1.5 + 2), (2, 7 + 2 + 2)]


def test_a_step_between_measured_batches_and_beyond_them() -> None:
    speed = Profile("m", (1, 4, 8), (1.0, 2.5, 8.5))
    assert [speed.of(rows) for rows in (1, 2, 4, 6, 8, 10)] == pytest.approx([1.0, 1.5, 2.5, 5.5, 8.5, 11.5])
    assert Profile("m", (1,), (2.0,)).of(3) == 6.0


def test_in_throughput_mode_hits_are_the_small_ones_and_misses_the_large_ones() -> None:
    done: list[Done] = []
    one = workers(2, done)
    assigned(one, "throughput", "large", "small")
    hit = picture([("small", 10), ("large", 5)])
    lanes = run(one, *(Request(n, 0.0, plan) for n, plan in enumerate((miss("large"), hit, hit, miss("large")), 1)))
    assert lanes[1] == (refine_lane(), 2)
    # a picture's way in takes as long as its way out
    assert [(each.request.number, each.model, each.at) for each in done] == [
        (2, "small", 12.0), (3, "small", 24.0), (1, "large", 52.0), (4, "large", 104.0),
    ]  # fmt: skip


def test_in_quality_mode_large_models_refine_too_with_their_own_k() -> None:
    done: list[Done] = []
    one = workers(2, done)
    assigned(one, "quality", "large", "small")
    hit = picture([("small", 10), ("large", 5)])
    run(one, Request(1, 0.0, hit), Request(2, 0.0, hit))
    assert sorted((each.model, each.steps_run) for each in done) == [("large", 45), ("small", 40)]
    assert one.moved == 0


def test_what_a_large_model_may_not_refine_goes_on_to_who_may() -> None:
    done: list[Done] = []
    one = workers(2, done)
    assigned(one, "quality", "large", "small")
    only = picture([("small", 10)])
    run(one, Request(1, 0.0, only), Request(2, 0.0, only), Request(3, 0.0, only))
    assert [each.model for each in done] == ["small"] * 3
    assert one.moved == 2


def test_a_worker_that_switches_finishes_what_it_has() -> None:
    done: list[Done] = []
    changed: list[tuple[str, float]] = []

    def on_model(worker: Worker, at: float) -> None:
        changed.append((worker.duty.model, at))

    one = Workers(PAIR, SPEEDS, 2, done.append, on_model, max_rows=2)
    assigned(one, "throughput", "large", "large")
    one.at(5.5, lambda: assigned(one, "throughput", "large", "small"))
    run(one, *(Request(n, 0.0, miss("large"), steps=10) for n in (1, 2, 3, 4)))
    # a step alone, nine together, a picture, the other's last step alone, and its picture
    assert changed == [("small", 1 + 9 * 1.5 + 2 + 1 + 2)]
    assert len(done) == 4


def test_throughput_counts_up_to_the_first_that_is_not_served() -> None:
    done = [Done(Request(n, 0.0, miss("large")), at, "w", "large", 50) for n, at in ((1, 1.0), (2, 2.0), (4, 3.0))]
    assert served_together(done, 0.0, 10.0) == 0.2
    assert served_together([*done, Done(Request(3, 0.0, miss("large")), 9.0, "w", "large", 50)], 2.0, 10.0) == 0.25
