"""A live check takes no time from clients' jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.catalog import Jobs
from shared.domain.types import Job
from shared.runtime.settings import Settings
from tests.contracts.nouns import a_job
from tests.unit.cache_maintainer.house import House, house


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs whose tasks were sent."""
    found: list[str] = []

    async def send(bus: object, job: Job, *_: object, **__: object) -> None:
        found.append(job.id)

    monkeypatch.setattr("services.cache_maintainer.live_checks.dispatch", send)
    return found


async def not_checked(home: House, sent: list[str]) -> None:
    async with asyncio.timeout(5):
        assert not await home.service._checks._check(a_job())  # it is tried again later
    assert sent == []
    assert await home.backends.catalog.jobs.left_checks() == []


async def test_no_check_begins_after_a_clients_job_came(small: Settings, sent: list[str]) -> None:
    async with house(small) as home:
        await home.backends.catalog.jobs.accept(a_job())
        await not_checked(home, sent)


async def test_a_check_that_ends_before_its_row_exists_is_not_sent(
    small: Settings, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Jobs.accept

    async with house(small) as home:

        async def late(jobs: Jobs, job: Job, **more: Any) -> tuple[Job, bool]:
            await home.service._checks.queued()  # the event of a client's job
            return await accept(jobs, job, **more)

        monkeypatch.setattr(Jobs, "accept", late)
        await not_checked(home, sent)
