"""A job's life in a worker: drawn once, stored, told, acknowledged; cancelled, handed back or answered again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from protos import gpu_worker_pb2 as pb
from services.gpu_worker.engine import schedulers
from services.gpu_worker.jobs.codecs import decode_state
from shared.catalog.jobs import job_rows
from shared.domain.errors import UnavailableError
from shared.domain.messages import (
    DataErased,
    GenerateImage,
    JobCancelled,
    JobQueued,
    JobSucceeded,
    Message,
    Progress,
    lane_of,
)
from shared.domain.types import Job, JobState, Size
from shared.models.card_lookup import find_card, write_card
from shared.runtime import audit
from tests.unit.gpu_worker.worker import SLOW, STEPS, WorkerBench, running_worker


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """A slow worker, with a lease that outlasts a pause of a busy machine."""
    async with running_worker(tmp_path / "data", SLOW, lease_s=3.0) as running:
        yield running


async def test_a_picture_is_drawn_stored_told_and_acknowledged(bench: WorkerBench) -> None:
    job = await bench.draw()
    await bench.idle()
    assert job.state is JobState.SUCCEEDED
    result = job.result
    assert result is not None
    assert (result.steps_run, result.model, result.weights_hash) == (
        STEPS,
        "large",
        bench.service._place.card.weights_hash,
    )
    assert (await bench.picture(job)).shape == (64, 64, 3)
    assert result.picture_bytes == len(await bench.blobs.get(result.picture_key))
    assert [state.step for state in result.captured] == [2, 4]
    for state in result.captured:
        data = await bench.blobs.get(state.key, state.sha256)
        assert len(data) == state.bytes
        assert decode_state(data, state.codec).shape == (4, 16, 16)
    assert result.compat == bench.service._place.card.compat(Size(64, 64), STEPS)
    picture = (result.picture_key, result.picture_sha256)
    assert await bench.told(JobSucceeded) == [JobSucceeded(job.id, 1, bench.service.worker, "large", STEPS, *picture)]
    timings = result.timings
    assert timings.denoise_s > 0
    assert timings.decode_s > 0
    assert timings.total_s >= timings.queue_s + timings.denoise_s + timings.decode_s + timings.store_s - 1e-3
    assert await bench.backends.bus.dead_letters() == []


async def test_cancel_takes_effect_between_steps_and_leaves_the_others_alone(slow: WorkerBench) -> None:
    doomed, other = await slow.accept(), await slow.accept()
    await slow.send(doomed)
    await slow.send(other)
    await slow.until(lambda job: bool(slow.service._tasks.attempts_at(job.id)), doomed.id)
    await asyncio.sleep(0.07)
    assert (await slow.jobs.cancel(doomed.id)).state is JobState.CANCELLED
    await slow.backends.bus.publish(JobCancelled(doomed.id))
    done = await slow.final(other.id)
    await slow.idle()
    assert done.state is JobState.SUCCEEDED
    assert (await slow.jobs.get(doomed.id)).state is JobState.CANCELLED
    assert not [key for key in await slow.keys() if doomed.id in key]
    assert not slow.heard(JobSucceeded, doomed.id)


async def test_a_job_cancelled_before_its_claim_is_acknowledged_undrawn(slow: WorkerBench) -> None:
    job = await slow.accept()
    await slow.jobs.cancel(job.id)
    after = await slow.accept(steps=2)
    await slow.send(job)
    await slow.send(after)
    assert (await slow.final(after.id)).state is JobState.SUCCEEDED  # its lane keeps order: the first one was taken
    await slow.idle()
    assert not slow.heard(Progress, job.id)
    assert (await slow.jobs.get(job.id)).attempt == 0
    receiver = await slow.backends.bus.receive([lane_of(slow.model)], prefetch=1)
    with pytest.raises(TimeoutError):  # acknowledged: it is in no lane any more
        await asyncio.wait_for(receiver.get(), 0.2)


async def test_a_cancel_nobody_told_the_worker_is_seen_at_the_next_renewal(slow: WorkerBench) -> None:
    job = await slow.accept(steps=1000)  # 20 s
    await slow.send(job)
    await slow.until(lambda row: row.state is JobState.RUNNING, job.id)
    await slow.jobs.cancel(job.id)
    await asyncio.sleep(0.01)
    await slow.idle()
    assert await slow.keys() == []


async def test_the_lease_is_kept_alive_while_the_job_runs(tmp_path: Path) -> None:
    async with running_worker(tmp_path, SLOW, lease_s=1.5) as bench:
        job = await bench.accept(steps=100)  # two seconds
        await bench.send(job)
        done = await bench.final(job.id)
        assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 1, 0)


async def test_late_jobs_are_dropped_when_they_asked_for_it(slow: WorkerBench) -> None:
    job = await slow.draw(steps=100, deadline_s=0.2, drop_if_late=True)
    assert job.state is JobState.CANCELLED
    assert await slow.told(JobCancelled, job.id)


async def test_by_slack_a_late_job_is_not_started_and_leaves_the_others_their_time(tmp_path: Path) -> None:
    async with running_worker(tmp_path, SLOW, scheduler="slack") as bench:
        running = await bench.accept(steps=60, prompt="first")  # 1.2 s
        late = await bench.accept(steps=100, prompt="late", deadline_s=0.5, drop_if_late=True)
        await bench.send(running)
        await bench.until(lambda job: job.state is JobState.RUNNING, running.id)
        await asyncio.sleep(0.2)
        await bench.send(late)
        assert (await bench.final(late.id)).state is JobState.CANCELLED
        assert (await bench.final(running.id)).state is JobState.SUCCEEDED
        await bench.idle()
        ended = await bench.final(late.id)
        assert ended.result is None or ended.result.steps_run == 0


async def test_a_duplicate_of_a_finished_job_is_answered_again_before_it_is_acknowledged(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8: who dies in between, or finds no broker, leaves a task that comes back."""
    job = await bench.draw()
    await bench.idle()
    publish, tried = bench.backends.bus.publish, list[Message]()

    async def away_at_first(fact: Message) -> None:
        if isinstance(fact, JobSucceeded):
            tried.append(fact)
            if len(tried) == 1:
                raise UnavailableError("the broker is away", retry_after_s=0.05)
        await publish(fact)

    monkeypatch.setattr(bench.backends.bus, "publish", away_at_first)
    await bench.send(job)
    await bench.told(JobSucceeded, job.id, count=2)
    await bench.idle()
    assert len(tried) == 2
    assert (await bench.jobs.get(job.id)).attempt == 1
    assert len(await bench.keys("pictures/")) == 1


async def test_a_duplicate_under_a_live_lease_waits_and_draws_nothing(slow: WorkerBench) -> None:
    job = await slow.accept(steps=20)
    await slow.send(job)
    await slow.send(job)
    done = await slow.final(job.id)
    await slow.idle()
    assert done.attempt == 1
    assert len(await slow.keys("pictures/")) == 1


async def test_a_duplicate_under_a_live_lease_is_not_acknowledged(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8: should the other worker hand the job back, this task may be the only one that is left of it."""
    looked, get = asyncio.Event(), slow.jobs.get

    async def seen(job_id: str) -> Job:
        row: Job = await get(job_id)
        looked.set()
        return row

    monkeypatch.setattr(slow.jobs, "get", seen)
    job = await slow.accept(steps=2)
    assert await slow.jobs.claim(job.id, "another", 600)
    await slow.send(job)
    await asyncio.wait_for(looked.wait(), 20)
    await slow.idle()
    assert await slow.jobs.release(job.id, 1)
    done = await slow.final(job.id)
    assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 2, 0)


async def test_unknown_jobs_and_strange_messages_do_not_stay_in_the_lane(slow: WorkerBench) -> None:
    lane = lane_of(slow.model)
    await slow.backends.bus.send(lane, GenerateImage("nobody"))
    await slow.backends.bus.send(lane, JobQueued("x", lane, "m", "noise"))
    await asyncio.sleep(0.05)
    await slow.idle()
    (letter,) = await slow.backends.bus.dead_letters()
    assert "JobQueued" in letter.reason


async def test_a_drain_hands_back_what_it_cannot_finish(tmp_path: Path, logs: list[Any]) -> None:
    async with running_worker(tmp_path, SLOW) as bench:
        short, long = await bench.accept(steps=2), await bench.accept(steps=1000)
        await bench.send(short)
        await bench.send(long)
        await bench.until(lambda job: job.state is JobState.RUNNING, long.id)
        answer = await bench.service.Drain(pb.DrainRequest(timeout_s=1.5), None)
        assert (answer.finished, answer.handed_back) == (1, 1)
        assert (await bench.jobs.get(short.id)).state is JobState.SUCCEEDED
        assert [line["job"] for line in logs if line["event"] == "job handed back"] == [long.id]
        back = await bench.jobs.get(long.id)
        assert (back.state, back.failures, back.crashes) == (JobState.QUEUED, 0, 0)
        assert not [key for key in await bench.keys() if long.id in key]
        # its task is in the lane again, for the next worker
        receiver = await bench.backends.bus.receive([lane_of(bench.model)], prefetch=1)
        async with asyncio.timeout(1):
            assert (await receiver.get()).message == GenerateImage(long.id, only=True)


async def test_a_drain_that_fails_is_recorded(slow: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(slow.service, "drain", AsyncMock(side_effect=UnavailableError("the catalog does not answer")))
        with pytest.raises(UnavailableError):
            await slow.service.Drain(pb.DrainRequest(), None)
    (line,) = (slow.service._context.settings.data_dir / audit.FILE).read_text().splitlines()
    said = json.loads(line)
    assert (said["action"], said["outcome"]) == ("drain", UnavailableError.code)


@pytest.mark.usefixtures("plain_logs")
async def test_an_engine_in_trouble_fails_its_tasks_and_goes_on(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(schedulers, "decide", lambda *_: 1 / 0)
        failed = await slow.draw(steps=30)
    assert failed.state is JobState.FAILED
    assert "ZeroDivisionError" in failed.error
    assert (await slow.draw()).state is JobState.SUCCEEDED


async def test_describe_says_what_is_loaded(bench: WorkerBench) -> None:
    await bench.draw()
    async with asyncio.timeout(10):  # the row is final a moment before the worker has put the task away
        while (said := await bench.service.Describe(pb.DescribeRequest(), None)).rows:
            await asyncio.sleep(0.01)
    (model,) = said.models
    assert (said.device, said.rows, said.max_rows, said.draining) == ("cpu", 0, 8, False)
    assert (model.model, model.dtype, model.sampler) == ("large", "float32", bench.service._place.card.sampler_id)
    assert model.bytes > 100_000
    assert model.step_s[1] > 0


async def test_a_card_of_half_precision_is_loaded_in_float32_on_a_cpu(tiny_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_folder / "large", tmp_path / "half")
    card = find_card(str(copy))
    write_card(replace(card, name="half", dtype="float16"), copy)
    for asked, found in (("auto", "float32"), ("bfloat16", "bfloat16")):
        async with running_worker(tmp_path / asked, str(copy), dtype=asked) as bench:
            (model,) = (await bench.service.Describe(pb.DescribeRequest(), None)).models
            assert (model.model, model.dtype) == ("half", found)
            family: Any = bench.service._models.families["half"]
            assert str(next(family.denoiser.parameters()).dtype) == f"torch.{found}"


async def test_the_same_request_gives_the_same_bytes_in_any_company(bench: WorkerBench) -> None:
    alone = await bench.draw(seed=3)
    crowd = await asyncio.gather(*(bench.draw(seed=seed, guidance=1.0 + seed % 2) for seed in range(6)))
    mine = await bench.draw(seed=3)
    assert alone.result is not None
    assert mine.result is not None
    assert mine.result.picture_sha256 == alone.result.picture_sha256
    hashes = {job.request.seed: job.result.picture_sha256 for job in crowd if job.result}
    assert len(set(hashes.values())) == 6


async def test_what_is_kept_of_a_prompt_is_for_its_own_tenant_and_goes_with_an_erasure(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    family: Any = bench.service._place.families[bench.model]
    encode, encoded = family._encode_prompt, list[str]()

    def watched(prompt: str, negative: bool) -> Any:
        encoded.append(prompt)
        return encode(prompt, negative)

    monkeypatch.setattr(family, "_encode_prompt", watched)
    for tenant in ("acme", "acme", "rival"):
        await bench.draw(tenant=tenant)
    assert encoded.count("a red fox") == 2
    await bench.idle()
    await bench.backends.bus.publish(DataErased(("any",)))
    async with asyncio.timeout(5.0):
        while family._encode.cache_info().currsize or job_rows._read.cache_info().currsize:
            await asyncio.sleep(0.01)
