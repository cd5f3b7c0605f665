"""One line in the log for each request that ended, whoever waited for it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from shared.domain.errors import AfterimageError
from shared.domain.types import JobState
from shared.runtime import telemetry
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house

Logs = list[MutableMapping[str, Any]]


def lines(logs: Logs) -> Logs:
    return [one for one in logs if one["event"] == "request finished"]


async def line_of(logs: Logs, job_id: str) -> MutableMapping[str, Any]:
    """The line of a job, once it is there; a second one would be there a moment later."""
    async with asyncio.timeout(20):
        while not any(one["job"] == job_id for one in lines(logs)):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    (line,) = (one for one in lines(logs) if one["job"] == job_id)
    return line


async def test_a_line_says_how_a_picture_came_and_not_what_it_shows(make: Make, logs: Logs) -> None:
    async with house(make(large="noop:")) as it:
        first = await it.generate("a red fox", seed=1, steps=50)
        hit = await it.generate("a red fox", seed=2, steps=50)
        again = await it.client.generate("a red fox", seed=1, steps=50)
        for picture, source in ((first, "noise"), (hit, "latent"), (again, "exact")):
            line = await line_of(logs, picture.job.id)
            seconds = line.pop("seconds")
            assert line == {
                "event": "request finished", "log_level": "info", "service": "gateway", "job": picture.job.id,
                "tenant": "default", "status": "succeeded", "source": source, "start_step": picture.plan.start_step,
                "steps": 50, "model": "noop",
            }  # fmt: skip
            assert 0 <= seconds < 60
        assert hit.plan.start_step > 0
    assert len(lines(logs)) == 3


async def test_the_prompt_is_there_where_it_is_switched_on(make: Make, logs: Logs) -> None:
    async with house(make(large="noop:", log_prompts=True)) as it:
        picture = await it.client.generate("a red fox", steps=2)
        assert (await line_of(logs, picture.job.id))["prompt"] == "a red fox"
        hides: list[dict[str, Any]] = [{"cache": "off"}, {"scope": "private", "user": "ana"}]
        for hidden in hides:
            picture = await it.client.generate("a red fox", steps=2, **hidden)
            assert "prompt" not in await line_of(logs, picture.job.id)


async def _running(it: House) -> str:
    async with asyncio.timeout(20):
        while not (found := (await it.client.list_jobs(state=JobState.RUNNING))[0]):
            await asyncio.sleep(0.01)
    return found[0].job.id


async def test_jobs_that_fail_or_are_cancelled_or_that_nobody_waits_for_have_theirs(
    make: Make, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(make(large=SLOW)) as it:
        waiting = asyncio.create_task(it.client.generate("left", steps=30))
        left = await _running(it)
        waiting.cancel()  # the call ends, its job goes on
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await line_of(logs, left))["status"] == "succeeded"

        waiting = asyncio.create_task(it.client.generate("stopped", steps=500))
        stopped = await _running(it)
        await it.client.cancel(stopped)
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await line_of(logs, stopped))["status"] == "cancelled"

        async def broken(*_: object) -> None:
            raise AfterimageError("no room for the picture")

        monkeypatch.setattr(it.backends.blobs, "put", broken)
        with pytest.raises(AfterimageError, match="no room"):
            await it.client.generate("failed", steps=2)
        ((failed,), _) = await it.client.list_jobs(state=JobState.FAILED)
        line = await line_of(logs, failed.job.id)
        assert (line["status"], line["error"]) == ("failed", failed.job.error)


async def test_after_a_restart_the_jobs_that_were_left_have_theirs(make: Make, logs: Logs) -> None:
    settings = make(large=SLOW, drain_s=0.1)
    async with house(settings) as it:
        waiting = asyncio.create_task(it.client.generate("left", steps=100))
        left = await _running(it)
    await asyncio.gather(waiting, return_exceptions=True)
    assert not lines(logs)
    async with house(settings):
        assert (await line_of(logs, left))["status"] == "succeeded"


def test_on_a_terminal_lines_are_for_people_and_elsewhere_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    said = {}
    for kind in (Terminal, io.StringIO):
        with monkeypatch.context() as patched:
            patched.setattr("sys.stderr", stderr := kind())
            telemetry.configure_logging("info")
            telemetry.log("gateway").info("request finished", job="01jd", seconds=1.25)
            said[kind] = stderr.getvalue()
    assert json.loads(said[io.StringIO])["seconds"] == 1.25
    assert "request finished" in said[Terminal]
    assert not said[Terminal].startswith("{")
