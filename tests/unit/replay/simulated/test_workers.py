"""Workers in virtual time, by hand and against what cannot be otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.simulated.pace import Profile, read_profile, slo_s
from services.replay.simulated.worker_state import Done, Request
from services.replay.simulated.workers import Workers
from shared.domain.errors import ConfigurationError
from shared.domain.types import Plan, PlanSource

ONE_A_SECOND = Profile("toy", (1, 2, 4), (1.0, 1.5, 2.0), 0.25)


def run(
    arrivals: list[tuple[float, int]], *, count: int = 1, max_rows: int = 2, in_turns: bool = True
) -> tuple[list[tuple[float, float]], Workers]:
    """(joined, done) of each; arrivals: (second, steps)."""
    found: dict[int, tuple[float, float]] = {}

    def done(one: Done) -> None:
        found[one.request.number] = one.joined_at, one.at

    workers = Workers(("toy",), {"toy": ONE_A_SECOND}, count, done, max_rows=max_rows, in_turns=in_turns)
    for number, (at, steps) in enumerate(arrivals):
        workers.until(at)
        workers.arrive(Request(number, at, Plan(PlanSource.NOISE, "toy"), steps))
    workers.finish()
    return [found[number] for number in range(len(arrivals))], workers


def test_a_picture_alone() -> None:
    (only,), workers = run([(3.0, 4)])
    assert only == (3.0, 7.25)
    assert ONE_A_SECOND.alone_s(4) == 4.25
    assert slo_s(ONE_A_SECOND, 4, (2, 4)) == [8.5, 17.0]
    assert sum(one.busy_s for one in workers.workers) == 4.25


def test_a_newcomer_joins_before_the_next_step_and_slows_it() -> None:
    # alone for one step up to 1.0, together for three of 1.5 s, and the second's last one alone after a decoding
    first, second = run([(0.0, 4), (0.5, 4)])[0]
    assert first == (0.0, 1.0 + 3 * 1.5 + 0.25)
    assert second == (1.0, 1.0 + 3 * 1.5 + 0.25 + 1.0 + 0.25)


def test_who_finds_no_row_waits_for_one() -> None:
    *_, third = run([(0.0, 2), (0.0, 2), (0.1, 1)])[0]
    # the first runs its first step alone, both their second together …
    assert third[0] == pytest.approx(1.0 + 1.5 + 0.25)
    assert third[1] == pytest.approx(third[0] + 1.5 + 0.25 + 0.25)  # beside the second, whose last step it is


def test_nobody_joins_while_pictures_are_decoded() -> None:
    first, second = run([(0.0, 1), (1.1, 1)])[0]
    assert first == (0.0, 1.25)
    assert second == (1.25, 2.5)


def test_nothing_to_draw_takes_no_time() -> None:
    assert run([(2.0, 0)])[0] == [(2.0, 2.0)]


def test_they_take_turns() -> None:
    (first, second), workers = run([(0.0, 2), (0.0, 2)], count=2)
    assert first == second == (0.0, 2.25)
    assert workers.longest == 1


def test_a_broker_pushes_in_turns_where_workers_that_ask_are_served_when_idle() -> None:
    given = [(0.0, 4), (0.1, 1), (2.5, 1)]
    # the third is pushed to the first worker, whose step ends at 3; the second has been idle since 1.35
    assert run(given, count=2)[0][2][0] == 3.0
    assert run(given, count=2, in_turns=False)[0][2][0] == 2.5


arrivals = st.lists(st.tuples(st.floats(0, 50), st.integers(1, 9)), min_size=1, max_size=30)


@settings(max_examples=60)
@given(arrivals=arrivals, count=st.integers(1, 3), max_rows=st.integers(1, 4), in_turns=st.booleans())
def test_everyone_is_served_with_all_steps_and_nobody_faster_than_alone(
    arrivals: list[tuple[float, int]], count: int, max_rows: int, in_turns: bool
) -> None:
    arrivals = sorted(arrivals, key=lambda one: one[0])
    found, workers = run(arrivals, count=count, max_rows=max_rows, in_turns=in_turns)
    for (at, steps), (joined, done) in zip(arrivals, found, strict=True):
        assert joined >= at
        assert done >= joined + ONE_A_SECOND.alone_s(steps) - 1e-6
    # a step of a full batch does the most rows a second that there are
    fewest = sum(steps for _, steps in arrivals) * min(ONE_A_SECOND.of(rows) / rows for rows in range(1, max_rows + 1))
    assert sum(one.busy_s for one in workers.workers) >= fewest - 1e-6
    assert not any(workers.waiting.values())


def test_a_profile_is_read_from_a_model_or_a_file(tmp_path: Path) -> None:
    bundled = read_profile("bundled:large")
    assert bundled.rows == (1, 2, 4, 8)
    assert bundled.of(1) < bundled.of(3) < bundled.of(8) < bundled.of(12)
    (tmp_path / "latency.json").write_text(json.dumps({"step_s": {"1": 0.5}, "decode_s": 0}))
    assert read_profile(str(tmp_path / "latency.json")).of(4) == 2.0
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no measured latency"):
        read_profile(str(tmp_path / "none.json"))
