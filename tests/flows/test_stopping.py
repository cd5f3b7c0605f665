"""Jobs that are cancelled, late, refused or abandoned; the others never notice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Any

import httpx
import pytest

from services.gateway.http.events import HEARTBEAT_S
from services.gateway.service import GatewayService
from shared.client import Accepted, AsyncClient, Picture, Progress, Waiting
from shared.domain.errors import (
    AfterimageError,
    CancelledError,
    DeadlineError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)
from shared.domain.types import Job, JobState, Modality, PlanSource
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house


async def started(it: House, prompt: str, **fields: Any) -> tuple[str, asyncio.Task[Picture]]:
    """A job that runs, and the call that waits for it."""
    stream = it.client.generate_stream(prompt, cache="off", **fields)
    accepted = await anext(stream)
    assert isinstance(accepted, Accepted)

    async def wait() -> Picture:
        async for event in stream:
            if isinstance(event, Picture):
                return event
        raise AssertionError("no picture")

    return accepted.job_id, asyncio.create_task(wait())


async def test_cancelling_takes_effect_between_steps_and_the_batch_goes_on(make: Make) -> None:
    async with house(make(large=SLOW)) as it:
        doomed, waiting = await started(it, "doomed", steps=500)
        other = asyncio.create_task(it.client.generate("other", steps=30, cache="off"))
        await it.claimed(doomed)
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        view = await it.client.cancel(doomed)
        with pytest.raises(CancelledError, match=doomed):
            await waiting
        cancelled_s = time.monotonic() - begun
        picture = await other
        cost = await it.client.get_job(doomed)
        with pytest.raises(NotFoundError, match="cancelled and has no image"):
            await it.client.get_picture(doomed)
        again = await it.client.cancel(picture.job.id)

    assert view.job.state is JobState.CANCELLED
    assert 0 < view.steps_run == cost.steps_run < 500
    assert view.timings.total_s > 0
    assert cancelled_s < 5.0  # of ten seconds that it would have run
    assert picture.steps_run == 30
    assert again.job.state is JobState.SUCCEEDED  # too late: it had ended
    assert cost.timings.total_s > 0


async def test_a_catalog_that_goes_away_after_a_cancel_takes_nothing_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row says what it had cost a moment later, and cannot be read by then."""
    async with house(make(large=SLOW)) as it:
        stream = it.client.generate_stream("doomed", steps=500, cache="off")
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)
        doomed = accepted.job_id
        await stream.aclose()
        async with asyncio.timeout(20):
            while (await it.client.get_job(doomed)).job.state is not JobState.RUNNING:
                await asyncio.sleep(0.02)
        gateway = next(service for service in it.process.services if isinstance(service, GatewayService))
        jobs, refused = gateway._jobs, list[str]()
        cancel, get = jobs.cancel, jobs.get

        async def away(job_id: str) -> Job:
            refused.append(job_id)
            raise UnavailableError("the catalog does not answer")

        async def and_then_away(job_id: str) -> Job:
            job: Job = await cancel(job_id)
            monkeypatch.setattr(jobs, "get", away)
            return job

        monkeypatch.setattr(jobs, "cancel", and_then_away)
        view = await it.client.cancel(doomed)
        monkeypatch.setattr(jobs, "get", get)
        assert view.job.state is JobState.CANCELLED
        assert refused


async def test_a_cancelled_queued_job_never_starts(make: Make) -> None:
    async with house(make(large=SLOW, max_rows=1)) as it:
        _, running = await started(it, "running", steps=50)
        queued, waiting = await started(it, "queued", steps=50)
        assert (await it.client.cancel(queued)).job.state is JobState.CANCELLED
        with pytest.raises(CancelledError):
            await waiting
        assert (await running).steps_run == 50
        assert (await it.client.get_job(queued)).job.attempt == 0


async def test_a_late_job_is_dropped_only_if_its_client_asked_for_that(make: Make) -> None:
    kinds = tuple(Modality)
    async with house(make(large=SLOW, video=f"{SLOW}&name=clips")) as it:

        async def late(kind: Modality) -> None:
            with pytest.raises(DeadlineError, match=r"deadline_s: 0\.3"):
                await it.client.generate(f"late {kind}", modality=kind, steps=500, deadline_s=0.3, drop_if_late=True)

        async def patiently(kind: Modality) -> Picture:
            fields: dict[str, Any] = {"steps": 30, "cache": "off", "deadline_s": 0.1}
            return await it.client.generate(f"late but wanted {kind}", modality=kind, **fields)

        await asyncio.gather(*map(late, kinds))
        patient = await asyncio.gather(*map(patiently, kinds))
        wanted = {f"late {kind}": JobState.CANCELLED for kind in kinds}
        wanted |= {f"late but wanted {kind}": JobState.SUCCEEDED for kind in kinds}
        states = await _states(it, wanted)
        views = {view.job.request.prompt: view for view in (await it.client.list_jobs())[0]}

    for kind, picture in zip(kinds, patient, strict=True):
        assert picture.steps_run == 30
        (late_by,) = picture.job.warnings
        said = r"deadline_s: finished \d+\.\d\d s after the deadline of 0\.1 s; set drop_if_late .*"
        assert re.fullmatch(said, late_by)
        assert views[f"late but wanted {kind}"].job.warnings == picture.job.warnings
        assert views[f"late {kind}"].job.error == "deadline_s: 0.3 s passed before the job finished"
        assert 0 < views[f"late {kind}"].steps_run < 500
        assert views[f"late but wanted {kind}"].job.error == ""
    assert states == wanted


async def test_a_caller_that_leaves_takes_its_job_along_only_if_it_said_so(make: Make) -> None:
    async with house(make(large=SLOW)) as it:
        with pytest.raises(DeadlineError):
            await it.client.generate("gone", steps=500, deadline_s=300, drop_if_late=True, timeout_s=0.4)
        with pytest.raises(DeadlineError):
            await it.client.generate("goes on", steps=40, timeout_s=0.2)
        states = await _states(it, {"gone": JobState.CANCELLED, "goes on": JobState.SUCCEEDED})

    assert states == {"gone": JobState.CANCELLED, "goes on": JobState.SUCCEEDED}


async def _states(it: House, wanted: dict[str, JobState]) -> dict[str, JobState]:
    end = time.monotonic() + 15
    while True:
        views, _ = await it.client.list_jobs()
        states = {view.job.request.prompt: view.job.state for view in views}
        if states == wanted or time.monotonic() > end:
            return states
        await asyncio.sleep(0.05)


async def test_a_full_queue_refuses_with_a_delay_and_a_client_that_waits_gets_in(make: Make) -> None:
    async with house(make(large=SLOW, max_rows=1, max_queued=1)) as it:
        first, running = await started(it, "running", steps=60)
        await it.claimed(first)
        _, queued = await started(it, "queued", steps=2)
        with pytest.raises(OverloadedError, match="max_queued is 1") as refused:
            await it.client.generate("one too many", steps=2)
        assert refused.value.retry_after_s is not None
        assert 0 < refused.value.retry_after_s <= 60
        async with AsyncClient(it.process.address, retry_s=20.0) as patient:
            picture = await patient.generate("patient", steps=2, cache="off")
        await asyncio.gather(running, queued)

    assert picture.steps_run == 2


async def test_a_full_disk_refuses_before_accepting(make: Make) -> None:
    async with house(make(large="noop:", min_free_bytes=2**60)) as it:
        with pytest.raises(StorageFullError, match="min_free_bytes") as refused:
            await it.client.generate("no room")
        assert refused.value.retry_after_s
        assert (await it.client.list_jobs())[0] == []


@pytest.mark.parametrize("what", ["the disk is full", "no worker can load its model"])
async def test_an_exact_repeat_needs_neither_room_nor_a_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing is drawn or stored for it but a row; what is not one is refused as ever."""
    async with house(make(large="noop:")) as it:
        first = await it.generate("a red fox", seed=7)
        gateway = next(service for service in it.process.services if isinstance(service, GatewayService))
        refusal: tuple[type[AfterimageError], str] = StorageFullError, "min_free_bytes"
        if what == "the disk is full":
            obstacles = gateway._intake._obstacles
            monkeypatch.setattr(obstacles, "_min_free_bytes", 2**60)
            with pytest.raises(refusal[0], match=refusal[1]):  # a flood of repeats must leave room for jobs in hand
                await it.client.generate("a red fox", steps=10, seed=7)
            monkeypatch.setattr(obstacles, "_min_free_bytes", obstacles._free_bytes * 3 // 2)
        else:
            monkeypatch.setattr(gateway._roster, "unable", lambda now: {"noop"})
            refusal = UnavailableError, "'noop': no worker could load it"
        repeat = await it.client.generate("a red fox", steps=10, seed=7)
        assert (repeat.plan.source, repeat.png, repeat.steps_run) == (PlanSource.EXACT, first.png, 0)
        others: tuple[dict[str, Any], ...] = (
            {"seed": 8},
            {},
            {"seed": 7, "cache": "off"},
            {"seed": 7, "cache": "write"},
        )
        for other in others:
            with pytest.raises(refusal[0], match=refusal[1]):
                await it.client.generate("a red fox", steps=10, **other)
        rows, _ = await it.client.list_jobs()
        assert [row.job.id for row in rows] == [repeat.job.id, first.job.id]


async def test_a_client_that_waits_for_a_full_disk_hears_why_and_for_how_long(make: Make) -> None:
    heard: asyncio.Queue[Waiting] = asyncio.Queue()
    async with (
        house(make(large="noop:", min_free_bytes=2**60)) as it,
        AsyncClient(it.process.address, retry_s=60.0) as patient,
    ):
        for asked in (
            patient.generate("no room", on_wait=heard.put_nowait),
            anext(patient.generate_stream("no room", on_wait=heard.put_nowait)),
        ):
            asking = asyncio.ensure_future(asked)
            waiting = await asyncio.wait_for(heard.get(), 20)
            assert not asking.done()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert isinstance(waiting.error, StorageFullError)
            assert 30.0 <= waiting.delay_s <= 39.0


async def test_ending_the_process_finishes_what_runs_and_turns_new_calls_away(make: Make) -> None:
    async with contextlib.AsyncExitStack() as stack:
        it = await stack.enter_async_context(house(make(large=SLOW)))
        late = await stack.enter_async_context(AsyncClient(it.process.address, retry_s=0.0))
        job_id, waiting = await started(it, "finishes", steps=100)  # two seconds
        await _running(it, job_id)

        stopping = asyncio.Event()

        async def too_late() -> UnavailableError:
            """What a call is told that comes while the process drains."""
            await asyncio.wait_for(stopping.wait(), 30)
            with pytest.raises(UnavailableError) as refused:
                await late.generate("too late", steps=2, timeout_s=10.0)
            assert not waiting.done()  # it came while the other one was being drawn
            return refused.value

        refused, picture, _ = await asyncio.gather(too_late(), waiting, _stop(it, stopping))

    assert (picture.job.id, picture.steps_run) == (job_id, 100)
    assert "shutting down" in str(refused)
    assert refused.retry_after_s


async def test_a_page_of_the_console_is_let_go_at_once(make: Make) -> None:
    async with house(make(large=SLOW, http_listen="127.0.0.1:0")) as it:
        address = f"{it.process.http_address}/console/api/events"
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client, client.stream("GET", address) as events:
            lines = events.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            await it.process.services[0].drain()
            async with asyncio.timeout(HEARTBEAT_S / 3):  # without a push it would look after HEARTBEAT_S
                rest = [line async for line in lines]
    assert not [line for line in rest if "error" in line]


async def _running(it: House, job_id: str) -> None:
    async with asyncio.timeout(20):
        while (await it.client.get_job(job_id)).job.state is not JobState.RUNNING:
            await asyncio.sleep(0.02)


async def _stop(it: House, begun: asyncio.Event) -> None:
    """What SIGTERM sets going, in its order, while this test's clients stay connected."""
    for service in it.process.services:
        await service.drain()
        begun.set()


async def test_progress_is_told_by_step(make: Make) -> None:
    async with house(make(large=SLOW, progress_per_s=50)) as it:
        events = [event async for event in it.client.generate_stream("told", steps=20, cache="off")]
    steps = [event.step for event in events if isinstance(event, Progress)]
    assert steps == sorted(set(steps))
    assert max(steps) < 20  # the last one is the picture itself
    assert {event.steps for event in events if isinstance(event, Progress)} == {20}
