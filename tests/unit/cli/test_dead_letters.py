"""`afterimage dead-letters` on a real broker."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from rich.console import Console

from services.cli import dead_letters
from shared.bus import Bus, open_bus
from shared.bus.rabbitmq import RabbitBus
from shared.catalog import Catalog, open_catalog
from shared.domain.errors import ConfigurationError, InvalidRequestError, NotFoundError, UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import GenerateImage
from shared.domain.types import Job, JobState
from shared.runtime.settings import Settings
from tests.contracts.nouns import a_job
from tests.contracts.servers import url_of


@dataclass
class Yard:
    """A lane with dead letters, and what the commands print."""

    bus: Bus
    catalog: Catalog
    lane: str
    shown: io.StringIO

    async def failed(self, why: str) -> Job:
        """As a worker leaves a job whose errors were too many."""
        job, _ = await self.catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
        assert await self.catalog.jobs.claim(job.id, "w1", 60.0)
        assert await self.catalog.jobs.fail(job.id, 1, why, final=True)
        await self.bury(job, why)
        return job

    async def bury(self, job: Job, why: str) -> None:
        receiver = await self.bus.receive([self.lane], prefetch=1)
        await self.bus.send(self.lane, GenerateImage(job.id))
        await (await receiver.get()).bury(why)
        await receiver.close()

    async def letters(self) -> list[str]:
        return [letter.id for letter in await self.bus.dead_letters() if letter.lane == self.lane]

    def read(self) -> str:
        text = self.shown.getvalue()
        self.shown.truncate(0)
        return text


@pytest.fixture
async def yard(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Yard]:
    monkeypatch.setenv("AFTERIMAGE_BUS_URL", url_of("rabbitmq"))
    monkeypatch.setenv("AFTERIMAGE_CATALOG_URL", settings.catalog_url)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    shown = io.StringIO()
    monkeypatch.setattr(dead_letters, "wide", lambda: Console(file=shown, width=400))
    bus, catalog = await open_bus(url_of("rabbitmq")), await open_catalog(settings.catalog_url)
    yield Yard(bus, catalog, f"test.{new_id()}", shown)
    await bus.close()
    await catalog.close()


async def test_letters_are_listed_with_their_reasons_and_replayed_by_name(yard: Yard) -> None:
    first, second = await yard.failed("ModelError: not finite"), await yard.failed("ModelError: [bold]too large")
    await asyncio.to_thread(dead_letters.list_letters, 10_000)
    rows = [line for line in yard.read().splitlines() if yard.lane in line]
    for row, job, why in zip(rows, (first, second), ("not finite", "[bold]too large"), strict=True):
        assert job.id in row
        assert f"ModelError: {why}" in row
    one, other = await yard.letters()

    await asyncio.to_thread(dead_letters.replay, [other, "nobody"], False)
    assert "1 of 2 replayed, 1 were not found" in yard.read()
    assert await yard.letters() == [one]
    reopened = await yard.catalog.jobs.get(second.id)
    assert (reopened.state, reopened.failures, reopened.error) == (JobState.QUEUED, 0, "")
    receiver = await yard.bus.receive([yard.lane], prefetch=1)
    assert (await asyncio.wait_for(receiver.get(), 10)).message == GenerateImage(second.id)
    assert await yard.catalog.jobs.claim(second.id, "w2", 60.0)
    assert await yard.catalog.jobs.to_requeue(unconfirmed_after_s=-1.0) == []  # the broker has it


async def test_a_letter_that_is_not_there_is_no_success(yard: Yard) -> None:
    with pytest.raises(NotFoundError, match=r"none of these is .*: nobody"):
        await asyncio.to_thread(dead_letters.replay, ["nobody"], False)


async def test_a_condemned_job_is_released_by_its_own_id(yard: Yard) -> None:
    """With nothing held against it: neither its crashes nor the seconds before them."""
    job, _ = await yard.catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    for _ in range(5):
        assert await yard.catalog.jobs.claim(job.id, "dead", -1.0, True)
    assert await yard.catalog.jobs.fail(job.id, 5, "its worker crashed 4 times", final=True)
    await yard.bury(job, "its worker crashed 4 times")
    await asyncio.to_thread(dead_letters.replay, [job.id], False)
    assert "1 of 1 replayed" in yard.read()
    assert await yard.letters() == []
    row = await yard.catalog.jobs.get(job.id)
    assert (row.state, row.crashes, row.crashes_alone, row.alone_s) == (JobState.QUEUED, 0, 0, 0.0)


async def test_a_single_processs_failed_job_is_released_by_its_id(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process sends it as one that nobody has confirmed."""
    monkeypatch.setenv("AFTERIMAGE_BUS_URL", "inprocess:")
    monkeypatch.setenv("AFTERIMAGE_CATALOG_URL", settings.catalog_url)
    with pytest.raises(NotFoundError, match="there is no catalog at"):
        await asyncio.to_thread(dead_letters.replay, ["any"], False)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    catalog = await open_catalog(settings.catalog_url)
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    await catalog.jobs.confirm([job.id])
    assert await catalog.jobs.claim(job.id, "w1", 60.0)
    assert await catalog.jobs.fail(job.id, 1, "no", final=True)
    await asyncio.to_thread(dead_letters.replay, [job.id], False)
    assert [one.id for one in await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0)] == [job.id]
    with pytest.raises(NotFoundError, match=r"letters: .*nobody"):
        await asyncio.to_thread(dead_letters.replay, ["nobody"], False)
    with pytest.raises(ConfigurationError, match="bus_url: "):
        await asyncio.to_thread(dead_letters.replay, None, True)
    await catalog.close()


async def test_all_are_replayed_but_only_failed_jobs_begin_anew(yard: Yard) -> None:
    job = await yard.failed("no")
    assert await yard.catalog.jobs.reopen(job.id)
    assert await yard.catalog.jobs.claim(job.id, "w2", 60.0)
    await asyncio.to_thread(dead_letters.replay, None, True)
    assert await yard.letters() == []
    assert (await yard.catalog.jobs.get(job.id)).state is JobState.RUNNING
    await asyncio.to_thread(dead_letters.list_letters, 100)
    assert "no dead letters" in yard.read().splitlines()[-1]


async def test_which_letters_must_be_said(yard: Yard) -> None:
    for letters, everything in ((None, False), (["a"], True)):
        with pytest.raises(InvalidRequestError, match="replay: "):
            await asyncio.to_thread(dead_letters.replay, letters, everything)


def test_a_broker_that_is_away_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AFTERIMAGE_BUS_URL", "amqp://127.0.0.1:1")
    monkeypatch.setattr("shared.bus.open_bus", lambda url: RabbitBus(url).open(within_s=0.5))
    library = logging.getLogger("aiormq")
    try:
        with pytest.raises(UnavailableError, match="does not answer"):
            dead_letters.list_letters(100)
    finally:
        library.setLevel(logging.NOTSET)
    assert [one.getMessage() for one in caplog.records if one.name.startswith("aiormq")] == []


def test_a_bus_inside_a_process_has_none_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERIMAGE_BUS_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"bus_url: inprocess: .*afterimage jobs list --state failed"):
        dead_letters.list_letters(100)
