"""A job's life in a worker: drawn once, stored, told, acknowledged; and every way in which that can go wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import structlog
import torch

from protos import gpu_worker_pb2 as pb
from services.gpu_worker import engine as engine_module
from services.gpu_worker import service as service_module
from services.gpu_worker.codecs import decode_png, decode_state, encode_png, encode_state
from services.gpu_worker.families.noop import NoopFamily
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.redraw import redraw
from shared.bus.inprocess import Parcel
from shared.errors import BlobUnavailableError, StorageFullError, UnavailableError
from shared.messages import (
    GenerateImage,
    JobCancelled,
    JobFailed,
    JobQueued,
    JobSucceeded,
    Progress,
    StateLost,
    StateUsed,
    encode,
    lane_of,
)
from shared.telemetry import METRICS, configure_logging
from shared.types import Job, JobState, PlanSource, Size
from tests.unit.gpu_worker.worker import STEPS, Bench, running_worker

SLOW = "noop:?step_ms=20"


@pytest.fixture
async def bench(tiny_folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """The tiny real model, bit-equal."""
    large = str(tiny_folder / "large")
    async with running_worker(tmp_path / "data", large, batch_invariant=4, state_codec="fp32") as running:
        yield running


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Bench]:
    """A denoiser that takes 20 ms a step: time to interfere."""
    async with running_worker(tmp_path / "data", SLOW, lease_s=0.6) as running:
        yield running


@pytest.fixture
def plain_logs() -> Iterator[None]:
    """As in a service: the pretty tracebacks of unconfigured logs print every local tensor, which takes seconds."""
    configure_logging(pretty=False)
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "RETRY_S", 0.01)
    monkeypatch.setattr(service_module, "BUSY_RETRY_S", 0.05)


async def picture(bench: Bench, job: Job) -> np.ndarray:
    assert job.result is not None, job.error
    return decode_png(await bench.blobs.get(job.result.picture_key, job.result.picture_sha256))


async def test_a_picture_is_drawn_stored_told_and_acknowledged(bench: Bench) -> None:
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
    assert (await picture(bench, job)).shape == (64, 64, 3)
    assert result.picture_bytes == len(await bench.blobs.get(result.picture_key))
    assert [state.step for state in result.captured] == [2, 4]
    for state in result.captured:
        data = await bench.blobs.get(state.key, state.sha256)
        assert len(data) == state.bytes
        assert decode_state(data, state.codec).shape == (4, 16, 16)
    assert result.compat == bench.service._place.card.compat(Size(64, 64), STEPS)
    assert await bench.told(JobSucceeded) == [JobSucceeded(job.id, 1)]
    timings = result.timings
    assert timings.denoise_s > 0
    assert timings.decode_s > 0
    assert timings.total_s >= timings.queue_s + timings.denoise_s + timings.decode_s + timings.store_s - 1e-3
    assert await bench.backends.bus.dead_letters() == []


async def test_a_hit_starts_after_k_steps_and_is_redrawn_bit_equal_from_its_plan(bench: Bench) -> None:
    first = await bench.draw()
    entry = await bench.cache(first)
    plan = bench.hit(entry, 4, fresh_noise=0.5, noise_seed=99, capture_steps=(6,))
    crowd = [bench.draw(seed=seed, size=Size(96, 64)) for seed in (1, 2)]
    second, *_ = await asyncio.gather(bench.draw(plan, prompt="a blue fox"), *crowd)
    assert second.result is not None, second.error
    assert second.result.steps_run == STEPS - 4
    assert second.plan == plan
    assert await bench.told(StateUsed) == [StateUsed(entry.id, 4)]

    family = bench.service._family
    for job, blob in ((first, None), (second, await bench.blobs.get(plan.state_key))):
        again = redraw(family, job.request, job.plan, blob)
        assert encode_png(again.pixels) == await bench.blobs.get(job.result.picture_key)  # type: ignore[union-attr]
    assert not np.array_equal(await picture(bench, first), await picture(bench, second))


async def test_without_fresh_noise_a_hit_on_the_same_request_is_the_same_picture(bench: Bench) -> None:
    first = await bench.draw()
    second = await bench.draw(bench.hit(await bench.cache(first), 4))
    assert np.array_equal(await picture(bench, first), await picture(bench, second))


async def test_a_state_serves_a_run_of_another_length_at_the_same_noise_level(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    job = await bench.draw(bench.hit(entry, 4, start_step=8), steps=20)
    assert job.result is not None, job.error
    assert job.result.steps_run == 12
    assert await bench.told(StateUsed) == [StateUsed(entry.id, 4)]


async def test_a_missing_blob_is_a_hole_and_the_next_smaller_k_starts(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.delete([entry.states[1].key])
    job = await bench.draw(bench.hit(entry, 4))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS - 2
    assert (job.plan.start_step, job.plan.state_key) == (2, entry.states[0].key)
    assert "starts after 2 instead of 4 steps" in job.plan.degraded[0]
    assert job.plan.degraded[0].startswith("blobs: ")
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


async def test_corrupt_blobs_all_the_way_down_mean_noise(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.put(entry.states[1].key, encode_state(np.ones((4, 16, 16), np.float32), "fp32"))
    await bench.blobs.put(entry.states[0].key, b"garbage")
    job = await bench.draw(bench.hit(entry, 4, fresh_noise=0.5))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS
    assert (job.plan.source, job.plan.start_step, job.plan.fresh_noise) == (PlanSource.NOISE, 0, 0.0)
    assert job.plan.degraded[0].endswith("drawn from noise")
    assert job.plan.reason.startswith("Drawn from noise after all: ")
    lost = [StateLost(entry.id, state.step, state.key) for state in reversed(entry.states)]
    assert await bench.told(StateLost, count=2) == lost


async def test_a_hole_is_told_under_the_k_of_the_run_that_left_it(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.delete([entry.states[1].key])
    job = await bench.draw(bench.hit(entry, 4, start_step=8), steps=20)
    assert job.result is not None, job.error
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


async def test_a_state_of_another_shape_is_a_hole(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    wrong = encode_state(np.zeros((4, 8, 8), np.float32), "fp32")
    sha256 = await bench.blobs.put(entry.states[1].key, wrong)
    job = await bench.draw(bench.hit(entry, 4, state_sha256=sha256))
    assert job.result is not None, job.error
    assert (job.attempt, job.plan.start_step) == (1, 2)
    assert "its latent is (4, 8, 8), 64x64 needs (4, 16, 16)" in job.plan.degraded[0]
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


@pytest.mark.parametrize("trouble", ["codec", "store", "slow", "catalog", "beyond", "picture"])
async def test_a_failing_cache_never_fails_a_request(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large"), fetch_timeout_s=0.1) as bench:
        first = await bench.draw()
        entry = await bench.cache(first)
        plan, get = bench.hit(entry, 4), bench.blobs.get

        async def away(*_: object) -> Any:
            raise BlobUnavailableError("input/output error", retry_after_s=30.0)

        async def hangs(*_: object) -> bytes:
            await asyncio.sleep(60)
            return b""

        match trouble:
            case "codec":
                plan = replace(plan, state_codec="fp3")
            case "store":
                monkeypatch.setattr(bench.blobs, "get", away)
            case "slow":
                monkeypatch.setattr(bench.blobs, "get", hangs)
            case "catalog":
                await bench.blobs.delete([plan.state_key])
                monkeypatch.setattr(bench.backends.catalog.entries, "get", away)
            case "beyond":
                plan = replace(plan, start_step=STEPS)
            case "picture":
                small = await bench.blobs.put("pictures/small", encode_png(np.zeros((32, 32, 3), np.uint8)))
                plan = replace(plan, source=PlanSource.IMAGE, state_key="pictures/small", state_sha256=small)
        job = await bench.draw(plan)
        monkeypatch.setattr(bench.blobs, "get", get)
        assert job.result is not None, job.error
        assert (job.attempt, job.failures) == (1, 0)
        assert job.plan.degraded
        assert job.result.steps_run == (STEPS - {"codec": 2, "beyond": 4}.get(trouble, 0))
        assert not bench.heard(StateLost)  # none of these says that the blob is gone for good


async def test_other_weights_are_a_miss(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    job = await bench.draw(bench.hit(entry, 4, weights_hash="0" * 16))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS
    assert job.plan.degraded == ("weights: changed since the plan was made",)
    assert job.plan.weights_hash == bench.service._place.card.weights_hash


async def test_a_vanished_entry_means_noise(bench: Bench) -> None:
    entry = await bench.cache(await bench.draw())
    plan = bench.hit(entry, 4)
    await bench.backends.catalog.entries.drop_entries([entry.id])
    await bench.blobs.delete([state.key for state in entry.states])
    job = await bench.draw(plan)
    assert job.plan.source is PlanSource.NOISE


async def test_a_picture_starts_a_picture(bench: Bench) -> None:
    first = await bench.draw()
    assert first.result is not None
    plan = replace(
        first.plan, source=PlanSource.IMAGE, start_step=6, state_key=first.result.picture_key, capture_steps=()
    )
    job = await bench.draw(plan)
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS - 6


async def test_a_crashed_attempt_resumes_from_its_checkpoint_to_the_bit(tiny_folder: Path, tmp_path: Path) -> None:
    large = str(tiny_folder / "large")
    async with running_worker(
        tmp_path, large, batch_invariant=4, state_codec="fp32", checkpoint_every_steps=3, lease_s=0.3
    ) as bench:
        whole = await bench.draw()
        await bench.idle()
        assert await bench.keys("checkpoints/") == []
        entry = await bench.cache(whole)
        hit = bench.hit(entry, 2, fresh_noise=0.7, noise_seed=5)
        undisturbed = await bench.draw(hit)

        job = await bench.accept(hit)
        dead = await bench.jobs.claim(job.id, "dead", 0.01)
        assert dead is not None
        saved = await _checkpoint_of(bench, dead)
        await bench.send(job)
        resumed = await bench.final(job.id)
        assert resumed.result is not None, resumed.error
        assert (resumed.attempt, resumed.crashes) == (2, 1)
        assert resumed.result.steps_run == STEPS - 5
        assert np.array_equal(await picture(bench, resumed), await picture(bench, undisturbed))
        await bench.idle()
        assert saved not in await bench.keys("checkpoints/")


async def _checkpoint_of(bench: Bench, job: Job) -> str:
    """Runs a claimed job as far as its first checkpoint and leaves it there, like a worker that dies."""
    from services.gpu_worker.codecs import encode_checkpoint
    from services.gpu_worker.engine import Engine
    from services.gpu_worker.events import Checkpointed
    from services.gpu_worker.starts import prepare, task_of

    prepared = await prepare(job, bench.service._family, bench.blobs, bench.backends.catalog.entries)
    engine = Engine({bench.model: bench.service._family})
    engine.submit(replace(task_of(job.id, job.request, prepared.plan, prepared.start), checkpoint_every=3))
    events: list[Any] = []
    while not (saved := [event for event in events if isinstance(event, Checkpointed)]):
        events += engine.step()
    key = f"checkpoints/{job.id}-dead"
    state = encode_checkpoint(saved[0].latent, saved[0].step, saved[0].generator_state, prepared.plan)
    await bench.blobs.put(key, state)
    assert await bench.jobs.checkpoint(job.id, job.attempt, key, saved[0].step)
    return key


async def test_a_broken_checkpoint_costs_only_the_steps(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large"), checkpoint_every_steps=3, lease_s=0.3) as bench:
        job = await bench.accept()
        assert await bench.jobs.claim(job.id, "dead", 0.01)
        await bench.blobs.put("checkpoints/broken", b"garbage")
        assert await bench.jobs.checkpoint(job.id, 1, "checkpoints/broken", 3)
        await bench.send(job)
        done = await bench.final(job.id)
        assert done.result is not None, done.error
        assert done.result.steps_run == STEPS


@pytest.mark.parametrize("row_names", ["the one before, which is gone", "the last"])
async def test_a_checkpoint_that_the_catalog_forgot_is_found_by_its_name(
    tiny_folder: Path, tmp_path: Path, row_names: str
) -> None:
    """PostgreSQL that is killed forgets the last lazy commits, and the blob they replaced is gone by then."""
    async with running_worker(
        tmp_path, str(tiny_folder / "large"), batch_invariant=4, checkpoint_every_steps=3, lease_s=0.3
    ) as bench:
        job = await bench.accept()
        dead = await bench.jobs.claim(job.id, "dead", 0.01)
        assert dead is not None
        state = await bench.blobs.get(await _checkpoint_of(bench, dead))
        await bench.blobs.delete([f"checkpoints/{job.id}-dead"])
        last = f"checkpoints/{job.id}-1-3.safetensors"
        await bench.blobs.put(last, state)
        await bench.blobs.put(f"checkpoints/{job.id}-1-9.safetensors", b"torn")
        named = last if row_names == "the last" else f"checkpoints/{job.id}-1-2.safetensors"
        assert await bench.jobs.checkpoint(job.id, 1, named, 0)
        await bench.send(job)
        resumed = await bench.final(job.id)
        assert resumed.result is not None, resumed.error
        assert (resumed.attempt, resumed.result.steps_run) == (2, STEPS - 3)
        await bench.idle()
        assert await bench.keys("checkpoints/") == []


async def test_checkpoints_of_a_worker_killed_after_its_jobs_end_go_with_its_task(slow: Bench) -> None:
    job = await slow.draw(steps=2)
    await slow.idle()
    await slow.blobs.put(f"checkpoints/{job.id}-1-1.safetensors", b"left")
    await slow.send(job)  # one that nobody had in hand says nothing of a killed worker
    await slow.told(JobSucceeded, job.id, count=2)
    await slow.idle()
    assert len(await slow.keys("checkpoints/")) == 1
    await _send_again(slow, job)
    await slow.told(JobSucceeded, job.id, count=3)
    await slow.idle()
    assert await slow.keys("checkpoints/") == []


async def _send_again(bench: Bench, job: Job) -> None:
    """The task as the broker brings it after its worker died."""
    lane = lane_of(bench.model)
    parcel = Parcel(lane, *encode(GenerateImage(job.id)), urgent=False, delivered=True)
    bench.backends.bus.lane(lane).put(parcel)  # type: ignore[attr-defined]


async def test_a_worker_that_dies_before_the_burial_leaves_it_to_the_next(slow: Bench) -> None:
    job = await slow.accept()
    assert await slow.jobs.claim(job.id, "dead", 60)
    assert await slow.jobs.fail(job.id, 1, "its own fault", final=True)  # killed here
    await slow.send(job)  # a duplicate of the sweeper's: another task stands for the job
    await _send_again(slow, job)
    (fact,) = await slow.told(JobFailed, job.id)
    await slow.idle()
    assert (fact.attempt, fact.error) == (1, "its own fault")
    (letter,) = await slow.backends.bus.dead_letters()
    assert (letter.message, letter.reason) == (GenerateImage(job.id), "its own fault")


@pytest.mark.usefixtures("plain_logs")
async def test_a_failure_whose_commit_only_lost_its_answer_is_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_worker(tmp_path, SLOW, max_attempts=1) as bench:
        fail = bench.jobs.fail
        unheard: list[bool] = []

        async def connection_breaks(*given: Any, final: bool) -> bool:
            won = await fail(*given, final=final)
            if not unheard:
                unheard.append(won)
                raise UnavailableError("connection lost")
            return bool(won)

        monkeypatch.setattr(bench.jobs, "fail", connection_breaks)
        monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: 1 / 0)
        job = await bench.draw(steps=2)
        await bench.idle()
        assert (job.state, unheard) == (JobState.FAILED, [True])
        (letter,) = await bench.backends.bus.dead_letters()
        assert (letter.message, "ZeroDivisionError" in letter.reason) == (GenerateImage(job.id), True)


async def test_the_tasks_own_error_is_tried_three_times_then_kept_on_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.draw()
    before = set(await bench.keys())

    def not_finite(self: UNetFamily, size: Size, generator: object) -> torch.Tensor:
        return torch.full(self.latent_shape(size), torch.nan)

    monkeypatch.setattr(UNetFamily, "initial_noise", not_finite)
    job = await bench.draw()
    await bench.idle()
    assert (job.state, job.attempt, job.failures) == (JobState.FAILED, 3, 3)
    assert "numbers that are not finite" in job.error
    assert [fact.attempt for fact in await bench.told(JobFailed)] == [3]
    (letter,) = await bench.backends.bus.dead_letters()
    assert (letter.message, "not finite" in letter.reason) == (GenerateImage(job.id), True)
    assert set(await bench.keys()) == before


async def test_a_full_disk_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put = bench.blobs.put
    refused: list[str] = []

    async def full_for_a_while(key: str, data: bytes, **more: Any) -> str:
        if key.startswith("pictures/") and len(refused) < 5:
            refused.append(key)
            raise StorageFullError("no room", retry_after_s=0.01)
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", full_for_a_while)
    job = await bench.draw()
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.SUCCEEDED, 6, 0, 0)
    await bench.idle()
    assert await bench.backends.bus.dead_letters() == []
    assert len(await bench.keys("pictures/")) == 1
    assert len(await bench.keys("states/")) == 2


async def test_a_full_catalog_delays_the_end_of_a_job_and_costs_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease runs out meanwhile, as on a disk where it cannot be renewed either."""
    async with running_worker(tmp_path, SLOW, lease_s=0.2) as bench:
        finish, tried = bench.jobs.finish, asyncio.Event()

        async def full(*_: object, **__: object) -> bool:
            tried.set()
            raise StorageFullError("the disk is full", retry_after_s=30.0)

        monkeypatch.setattr(bench.jobs, "finish", full)
        monkeypatch.setattr(bench.jobs, "renew", full)
        job = await bench.accept(steps=2)
        await bench.send(job)
        await asyncio.wait_for(tried.wait(), 20)
        await asyncio.sleep(0.3)
        assert (await bench.jobs.get(job.id)).state is JobState.RUNNING
        monkeypatch.setattr(bench.jobs, "finish", finish)
        done = await bench.final(job.id)
        assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 1, 0)
        assert (await picture(bench, done)).shape == (64, 64, 3)


@pytest.mark.usefixtures("plain_logs")
async def test_a_full_catalog_delays_a_failure_too(slow: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = slow.jobs.fail
    refused: list[bool] = []

    async def full_at_first(*given: Any, final: bool) -> bool:
        refused.append(final)
        if len(refused) <= 5:
            raise StorageFullError("the disk is full", retry_after_s=30.0)
        return await fail(*given, final=final)

    monkeypatch.setattr(slow.jobs, "fail", full_at_first)
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: 1 / 0)
    job = await slow.draw(steps=2)
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.FAILED, 3, 3, 0)
    assert len(refused) == 5 + 3


async def test_a_commit_that_only_lost_its_answer_keeps_its_picture(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = slow.jobs.finish
    unheard: list[bool] = []

    async def connection_breaks(*given: Any) -> bool:
        won = await finish(*given)
        if not unheard:
            unheard.append(won)
            raise UnavailableError("connection lost")
        return bool(won)

    monkeypatch.setattr(slow.jobs, "finish", connection_breaks)
    job = await slow.draw(steps=2)
    await slow.told(JobSucceeded, job.id)
    await slow.idle()
    assert unheard == [True]
    assert (await picture(slow, job)).shape == (64, 64, 3)


async def test_a_worker_that_slept_longer_than_a_lease_claims_its_own_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop that is closed: leases run out by the clock on the wall, and the sweeper wakes before the renewal."""
    async with running_worker(tmp_path, SLOW, lease_s=30.0, max_rows=2) as bench:
        job = await bench.accept(steps=40)
        await bench.send(job)
        await bench.until(lambda row: bool(bench.heard(Progress, row.id)), job.id)
        await _let_lease_run_out(bench, job.id)
        (requeued,) = await bench.jobs.to_requeue(unconfirmed_after_s=60.0)
        assert requeued.id == job.id
        await bench.send(job)
        done = await bench.final(job.id)
        await bench.idle()
        assert (done.state, done.attempt, done.failures) == (JobState.SUCCEEDED, 2, 0)
        assert bench.service._attempts == {}
        assert len(await bench.keys("pictures/")) == 1
        # every row is free again: two at once are drawn
        pair = await asyncio.gather(*(bench.draw(steps=2) for _ in range(2)))
        assert [one.state for one in pair] == [JobState.SUCCEEDED] * 2


async def _let_lease_run_out(bench: Bench, job_id: str) -> None:
    def expire(connection: Any) -> None:
        connection.execute(sa.text("UPDATE jobs SET lease_until = 1 WHERE id = :id"), {"id": job_id})

    await bench.backends.catalog._database.write(expire)


@pytest.mark.usefixtures("plain_logs")
async def test_a_task_nobody_can_claim_yet_is_never_buried(slow: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = slow.jobs.claim
    refused: list[Any] = []

    async def away(*given: Any) -> Job | None:
        refused.append(given)
        if len(refused) <= 60:  # more than a task may be rejected for its own sake
            raise (UnavailableError if len(refused) % 2 else ZeroDivisionError)("no claims today")
        return await claim(*given)

    monkeypatch.setattr(service_module, "BUSY_RETRY_S", 0.001)
    monkeypatch.setattr(service_module, "RETRY_S", 0.001)
    monkeypatch.setattr(slow.jobs, "claim", away)
    job = await slow.draw(steps=2)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert await slow.backends.bus.dead_letters() == []


@pytest.mark.usefixtures("plain_logs")
async def test_a_bug_in_the_worker_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker(tmp_path, SLOW, max_rows=1) as bench:
        claim = bench.jobs.claim
        broken: list[Any] = []

        async def breaks_once(*given: Any) -> Job | None:
            if not broken:
                broken.append(given)
                raise ZeroDivisionError("a bug")
            return await claim(*given)

        monkeypatch.setattr(bench.jobs, "claim", breaks_once)
        job = await bench.draw(steps=2)
        assert (job.state, len(broken)) == (JobState.SUCCEEDED, 1)


async def test_a_claim_cancelled_half_way_is_handed_back(slow: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, claimed = slow.jobs.claim, asyncio.Event()

    async def answers_late(*given: Any) -> Job | None:
        row = await claim(*given)
        claimed.set()
        await asyncio.sleep(0.2)
        return row

    monkeypatch.setattr(slow.jobs, "claim", answers_late)
    job = await slow.accept()
    await slow.send(job)
    await asyncio.wait_for(claimed.wait(), 10)
    await slow.service.drain(0.0)
    row = await slow.jobs.get(job.id)
    assert (row.state, row.attempt, row.crashes) == (JobState.QUEUED, 1, 0)
    receiver = await slow.backends.bus.receive([lane_of(slow.model)], prefetch=1)
    async with asyncio.timeout(1):
        assert (await receiver.get()).message == GenerateImage(job.id)


async def test_saved_steps_are_counted_once_for_a_finished_picture(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved() -> float:
        return METRICS.steps_saved.labels(bench.model)._value.get()

    entry = await bench.cache(await bench.draw())
    before, put = saved(), bench.blobs.put
    refused: list[str] = []

    async def full_once(key: str, data: bytes, **more: Any) -> str:
        if key.startswith("pictures/") and not refused:
            refused.append(key)
            raise StorageFullError("no room", retry_after_s=0.01)
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", full_once)
    job = await bench.draw(bench.hit(entry, 4))
    await bench.idle()
    assert (job.attempt, saved() - before) == (2, 4)
    late = await bench.draw(bench.hit(entry, 4), deadline_s=0.0001, drop_if_late=True)
    await bench.idle()
    assert (late.state, saved() - before) == (JobState.CANCELLED, 4)


async def test_a_state_that_cannot_be_stored_is_a_hole_not_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = bench.blobs.put

    async def no_room_for_two(key: str, data: bytes, **more: Any) -> str:
        if key.endswith("-2.safetensors"):
            raise StorageFullError("no room")
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", no_room_for_two)
    job = await bench.draw()
    assert job.result is not None, job.error
    assert [state.step for state in job.result.captured] == [4]


async def test_cancel_takes_effect_between_steps_and_leaves_the_others_alone(slow: Bench) -> None:
    doomed, other = await slow.accept(), await slow.accept()
    await slow.send(doomed)
    await slow.send(other)
    await slow.until(lambda job: bool(slow.service._attempts_at(job.id)), doomed.id)
    await asyncio.sleep(0.07)
    assert (await slow.jobs.cancel(doomed.id)).state is JobState.CANCELLED
    await slow.backends.bus.publish(JobCancelled(doomed.id))
    done = await slow.final(other.id)
    await slow.idle()
    assert done.state is JobState.SUCCEEDED
    assert (await slow.jobs.get(doomed.id)).state is JobState.CANCELLED
    assert not [key for key in await slow.keys() if doomed.id in key]
    assert not slow.heard(JobSucceeded, doomed.id)


async def test_a_job_cancelled_before_its_claim_is_acknowledged_undrawn(slow: Bench) -> None:
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


async def test_a_cancel_nobody_told_the_worker_is_seen_at_the_next_renewal(slow: Bench) -> None:
    job = await slow.accept(steps=1000)  # 20 s
    await slow.send(job)
    await slow.until(lambda row: row.state is JobState.RUNNING, job.id)
    await slow.jobs.cancel(job.id)
    await asyncio.sleep(0.01)
    await slow.idle()
    assert await slow.keys() == []


async def test_the_lease_is_kept_alive_while_the_job_runs(slow: Bench) -> None:
    job = await slow.accept(steps=50)  # a second, with a lease of .6 s
    await slow.send(job)
    done = await slow.final(job.id)
    assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 1, 0)


async def test_late_jobs_are_dropped_when_they_asked_for_it(slow: Bench) -> None:
    job = await slow.draw(steps=100, deadline_s=0.2, drop_if_late=True)
    assert job.state is JobState.CANCELLED
    assert await slow.told(JobCancelled, job.id)


async def test_a_duplicate_of_a_finished_job_is_answered_again(bench: Bench) -> None:
    job = await bench.draw()
    await bench.send(job)
    await bench.told(JobSucceeded, job.id, count=2)
    await bench.idle()
    assert (await bench.jobs.get(job.id)).attempt == 1
    assert len(await bench.keys("pictures/")) == 1


async def test_a_duplicate_under_a_live_lease_waits_and_draws_nothing(slow: Bench) -> None:
    job = await slow.accept(steps=20)
    await slow.send(job)
    await slow.send(job)
    done = await slow.final(job.id)
    await slow.idle()
    assert done.attempt == 1
    assert len(await slow.keys("pictures/")) == 1


async def test_unknown_jobs_and_strange_messages_do_not_stay_in_the_lane(slow: Bench) -> None:
    lane = lane_of(slow.model)
    await slow.backends.bus.send(lane, GenerateImage("nobody"))
    await slow.backends.bus.send(lane, JobQueued("x", lane, "m", "noise"))
    await asyncio.sleep(0.05)
    await slow.idle()
    (letter,) = await slow.backends.bus.dead_letters()
    assert "JobQueued" in letter.reason


async def test_a_drain_hands_back_what_it_cannot_finish(tmp_path: Path) -> None:
    async with running_worker(tmp_path, SLOW) as bench:
        short, long = await bench.accept(steps=2), await bench.accept(steps=1000)
        await bench.send(short)
        await bench.send(long)
        await bench.until(lambda job: job.state is JobState.RUNNING, long.id)
        answer = await bench.service.Drain(pb.DrainRequest(timeout_s=1.5), None)
        assert (answer.finished, answer.handed_back) == (1, 1)
        assert (await bench.jobs.get(short.id)).state is JobState.SUCCEEDED
        back = await bench.jobs.get(long.id)
        assert (back.state, back.failures, back.crashes) == (JobState.QUEUED, 0, 0)
        assert not [key for key in await bench.keys() if long.id in key]
        # its task is in the lane again, for the next worker
        receiver = await bench.backends.bus.receive([lane_of(bench.model)], prefetch=1)
        async with asyncio.timeout(1):
            assert (await receiver.get()).message == GenerateImage(long.id)


async def test_progress_comes_at_once_and_then_at_its_pace(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, SLOW, progress_per_s=5.0) as bench:
        begun = time.monotonic()
        job = await bench.draw(steps=50)  # a second
        told = bench.heard(Progress, job.id)
        assert 3 <= len(told) <= 2 + 5 * (time.monotonic() - begun)
        assert (told[0].step, told[0].steps, told[0].preview) == (0, 50, "")
        assert [fact.step for fact in told] == sorted({fact.step for fact in told})
        assert told[-1].preview


async def test_a_job_seen_at_two_crashes_rides_alone_and_after_three_more_it_fails(slow: Bench) -> None:
    job = await slow.accept(steps=20)
    for _ in range(2):
        assert await slow.jobs.claim(job.id, "dead", 60)
        await slow.jobs.recover("dead")
    others = [await slow.accept(steps=20) for _ in range(2)]
    for one in (job, *others):
        await slow.send(one)
    alone, *rest = await asyncio.gather(*(slow.final(one.id) for one in (job, *others)))
    assert alone.state is JobState.SUCCEEDED
    assert all(one.updated_at > alone.updated_at for one in rest)

    cursed = await slow.accept()
    for _ in range(5):
        assert await slow.jobs.claim(cursed.id, "dead", 60)
        await slow.jobs.recover("dead")
    await slow.send(cursed)
    done = await slow.final(cursed.id)
    assert (done.state, done.error) == (JobState.FAILED, "its worker crashed 5 times, the last 3 alone")


@pytest.mark.usefixtures("plain_logs")
async def test_an_engine_in_trouble_fails_its_tasks_and_goes_on(slow: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(engine_module, "decide", lambda *_: 1 / 0)
        failed = await slow.draw(steps=30)
    assert failed.state is JobState.FAILED
    assert "ZeroDivisionError" in failed.error
    assert (await slow.draw()).state is JobState.SUCCEEDED


@pytest.mark.usefixtures("plain_logs")
async def test_a_preview_that_fails_costs_nobody_a_picture(slow: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoopFamily, "preview", lambda self, clean: 1 / 0)
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: np.zeros((64, 64, 3), np.uint8))
    job = await slow.draw(steps=30)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    told = slow.heard(Progress, job.id)
    assert len(told) > 1
    assert not any(fact.preview for fact in told)


async def test_describe_says_what_is_loaded(bench: Bench) -> None:
    await bench.draw()
    said = await bench.service.Describe(pb.DescribeRequest(), None)
    (model,) = said.models
    assert (said.device, said.rows, said.max_rows, said.draining) == ("cpu", 0, 8, False)
    assert (model.model, model.dtype, model.sampler) == ("large", "float32", bench.service._place.card.sampler_id)
    assert model.bytes > 100_000
    assert model.step_s[1] > 0


async def test_the_same_request_gives_the_same_bytes_in_any_company(bench: Bench) -> None:
    alone = await bench.draw(seed=3)
    crowd = await asyncio.gather(*(bench.draw(seed=seed, guidance=1.0 + seed % 2) for seed in range(6)))
    mine = await bench.draw(seed=3)
    assert alone.result is not None
    assert mine.result is not None
    assert mine.result.picture_sha256 == alone.result.picture_sha256
    hashes = {job.request.seed: job.result.picture_sha256 for job in crowd if job.result}
    assert len(set(hashes.values())) == 6
