"""Progress and previews of a job in a worker: when they are published, and what they cost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.events import Joined
from services.gpu_worker.families.noop import NoopFamily
from services.gpu_worker.jobs import attempt as attempt_module
from services.gpu_worker.jobs.attempt import Attempt
from shared.domain.messages import JobSucceeded, PreviewsRequested, Progress
from shared.domain.types import JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


async def test_what_is_drawn_within_a_moment_is_told_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "FIRST_S", 600.0)
    joined, to_come = Attempt._on_joined, list[asyncio.TimerHandle]()

    def seen(self: Attempt, event: Joined) -> None:
        joined(self, event)
        assert self._first is not None
        to_come.append(self._first)

    monkeypatch.setattr(Attempt, "_on_joined", seen)
    async with running_worker(tmp_path, "noop:?step_ms=0", progress_per_s=0.001) as bench:
        job = await bench.draw(steps=2)
        await bench.told(JobSucceeded, job.id)
        assert [first.cancelled() for first in to_come] == [True]
        assert not bench.heard(Progress, job.id)


async def test_progress_comes_soon_and_then_at_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "FIRST_S", 0.0)  # a busy machine may need longer than a moment
    async with running_worker(tmp_path, SLOW, progress_per_s=5.0) as bench:
        begun = time.monotonic()
        job = await bench.accept(steps=50)  # a second
        await bench.send(job, previews=True)
        await bench.final(job.id)
        told = bench.heard(Progress, job.id)
        assert 3 <= len(told) <= 2 + 5 * (time.monotonic() - begun)
        assert (told[0].step, told[0].steps, told[0].preview) == (0, 50, "")
        assert [fact.step for fact in told] == sorted({fact.step for fact in told})
        assert told[-1].preview


async def test_previews_are_made_once_a_stream_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()
    preview = NoopFamily.preview

    def counted(self: NoopFamily, clean: Any) -> Any:
        made.append("preview")
        return preview(self, clean)

    monkeypatch.setattr(NoopFamily, "preview", counted)
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: np.zeros((64, 64, 3), np.uint8))
    async with running_worker(tmp_path, SLOW, progress_per_s=50.0) as bench:
        made.clear()  # the model is warm
        unasked = await bench.draw(steps=20)
        assert len(bench.heard(Progress, unasked.id)) > 1
        assert not made
        assert not any(fact.preview for fact in bench.heard(Progress, unasked.id))

        running = await bench.accept(steps=50)
        await bench.send(running)
        await bench.told(Progress, running.id, 3)
        for job_id in ("nobody's", running.id):
            await bench.backends.bus.publish(PreviewsRequested(job_id))
        await bench.final(running.id)
        had = [bool(fact.preview) for fact in bench.heard(Progress, running.id)]
        assert had == sorted(had)  # none, and from one step on all
        assert (had[0], had[-1]) == (False, True)


async def test_previews_are_encoded_one_at_a_time_and_published_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, at_once = list[bytes](), list[int]()

    def slowly(*_: Any) -> bytes:
        running.append(b"")
        at_once.append(len(running))
        time.sleep(0.1)
        running.pop()
        return b"png"

    monkeypatch.setattr(attempt_module, "preview_png", slowly)
    monkeypatch.setattr(attempt_module, "INLINE_BYTES", 0)  # in a thread, as for large previews
    async with running_worker(tmp_path, SLOW, progress_per_s=60.0) as bench:
        job = await bench.accept(steps=50)
        await bench.send(job, previews=True)
        await bench.final(job.id)
        told = bench.heard(Progress, job.id)
    assert set(at_once) == {1}
    assert len(told) > 2
    assert [fact.step for fact in told] == sorted(fact.step for fact in told)


@pytest.mark.usefixtures("plain_logs")
async def test_a_preview_that_fails_costs_nobody_a_picture(slow: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoopFamily, "preview", lambda self, clean: 1 / 0)
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: np.zeros((64, 64, 3), np.uint8))
    job = await slow.accept(steps=30)
    await slow.send(job, previews=True)
    job = await slow.final(job.id)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    told = slow.heard(Progress, job.id)
    assert len(told) > 1
    assert not any(fact.preview for fact in told)
