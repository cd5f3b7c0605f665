"""The closed loop: nobody asks twice at once, order is kept, and what is done is not drawn again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from bench.traced.closed_loop import Drawn, drawn, first_free, play
from load.sessions import Prompt, make_trace
from shared.client import Picture
from shared.domain.errors import UnavailableError
from shared.domain.types import Candidate, Job, JobState, Plan, PlanSource, Request, Size, Timings


@cache
def traced() -> list[Prompt]:
    """Made by the first test, not by every worker that collects them."""
    return make_trace(60, 5)


def picture(row: Prompt, *, start_step: int = 20) -> Picture:
    request = Request(row.prompt, Size(row.width, row.height), row.steps, 2.5, seed=row.seed or 9)
    chosen = Candidate("e", "latent", 0.93, 25, start_step, prompt="a fox", chosen=True)
    plan = Plan(
        PlanSource.LATENT, "large", start_step, similarity=0.93, candidates=(chosen,), degraded=("index: late",)
    )
    job = Job("j", request, plan, JobState.SUCCEEDED)
    return Picture(job, "large", row.steps - start_step, Timings(denoise_s=0.5), png=b"png")


def test_the_earliest_request_of_a_free_user_goes_first() -> None:
    rows = traced()
    first, second = rows[0].user, next(row.user for row in rows if row.user != rows[0].user)
    assert first_free(range(len(rows)), rows, set()) == 0
    free = first_free(range(len(rows)), rows, {first})
    assert free is not None
    assert rows[free].user == second
    assert first_free(range(len(rows)), rows, {row.user for row in rows}) is None


async def test_users_wait_for_their_own_pictures() -> None:
    flying: Counter[int] = Counter()
    most = 0
    per_user: dict[int, list[int]] = {}

    async def draw(index: int, row: Prompt) -> Picture:
        nonlocal most
        flying[row.user] += 1
        most = max(most, flying.total())
        assert flying[row.user] == 1
        per_user.setdefault(row.user, []).append(index)
        await asyncio.sleep(0.001)
        flying[row.user] -= 1
        return picture(row)

    answers = [answer async for answer, _ in play(traced(), draw, concurrency=4, think_s=0.0)]
    assert sorted(answer.index for answer in answers) == list(range(len(traced())))
    assert most == 4
    assert all(asked == sorted(asked) for asked in per_user.values())


async def test_a_user_thinks_between_two_pictures() -> None:
    one_user = [replace(row, user=0) for row in traced()[:3]]

    async def draw(index: int, row: Prompt) -> Picture:
        return picture(row)

    start = asyncio.get_running_loop().time()
    assert len([answer async for answer, _ in play(one_user, draw, think_s=0.05)]) == 3
    assert asyncio.get_running_loop().time() - start >= 0.1


async def test_what_is_done_is_left_out_and_an_error_ends_the_run() -> None:
    asked = []

    async def draw(index: int, row: Prompt) -> Picture:
        asked.append(index)
        if index == 59:
            raise UnavailableError("gone")
        return picture(row)

    with pytest.raises(UnavailableError):
        [answer async for answer, _ in play(traced(), draw, done=set(range(55)), think_s=0.0)]
    assert set(asked) <= set(range(55, 60))


def test_what_is_kept_of_an_answer() -> None:
    kept = drawn(7, picture(traced()[0]), 1.25)
    assert (kept.index, kept.start_step, kept.steps, kept.steps_run) == (7, 20, 50, 30)
    assert (kept.source, kept.similarity, kept.from_prompt) == ("latent", 0.93, "a fox")
    assert kept.degraded == ("index: late",)
    assert kept.timings["denoise_s"] == 0.5
    assert kept.hit
    assert not kept.exact
    assert isinstance(kept, Drawn)
