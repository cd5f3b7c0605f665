"""Where a job really starts: its state, a smaller one, or noise; whatever the cache did meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.rows import Pixels
from services.gpu_worker.jobs import starts
from services.gpu_worker.jobs.codecs import decode_png, encode_png, encode_state
from shared.domain.errors import BlobUnavailableError
from shared.domain.messages import GenerateImage, StateLost, StateUsed
from shared.domain.types import Job, ModelPlan, Plan, PlanSource, Size, Source
from tests.redraw import redraw
from tests.unit.gpu_worker.worker import STEPS, WorkerBench, running_worker


async def test_a_hit_starts_after_k_steps_and_is_redrawn_bit_equal_from_its_plan(bench: WorkerBench) -> None:
    first = await bench.draw()
    entry = await bench.cache(first)
    plan = bench.hit(entry, 4, fresh_noise=0.5, noise_seed=99, capture_steps=(6,))
    crowd = [bench.draw(seed=seed, size=Size(96, 64)) for seed in (1, 2)]
    second, *_ = await asyncio.gather(bench.draw(plan, prompt="a blue fox"), *crowd)
    assert second.result is not None, second.error
    assert second.result.steps_run == STEPS - 4
    assert second.plan == plan
    assert await bench.told(StateUsed) == [StateUsed(entry.id, 4)]

    family = bench.service._place.families[bench.model]
    for job, blob in ((first, None), (second, await bench.blobs.get(plan.state_key))):
        again = redraw(family, job.request, job.plan, blob)
        assert encode_png(again.pixels) == await bench.blobs.get(job.result.picture_key)  # type: ignore[union-attr]
    assert not np.array_equal(await bench.picture(first), await bench.picture(second))


async def test_without_fresh_noise_a_hit_on_the_same_request_is_the_same_picture(bench: WorkerBench) -> None:
    first = await bench.draw()
    second = await bench.draw(bench.hit(await bench.cache(first), 4))
    assert np.array_equal(await bench.picture(first), await bench.picture(second))


async def test_a_state_serves_a_run_of_another_length_at_the_same_noise_level(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    job = await bench.draw(bench.hit(entry, 4, start_step=8), steps=20)
    assert job.result is not None, job.error
    assert job.result.steps_run == 12
    assert await bench.told(StateUsed) == [StateUsed(entry.id, 4)]


async def test_a_missing_blob_is_a_hole_and_the_next_smaller_k_starts(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.delete([entry.states[1].key])
    job = await bench.draw(bench.hit(entry, 4))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS - 2
    assert (job.plan.start_step, job.plan.state_key) == (2, entry.states[0].key)
    assert "starts after 2 instead of 4 steps" in job.plan.degraded[0]
    assert job.plan.reason.startswith("Saves fewer steps than planned: blobs: ")
    assert job.plan.degraded[0].startswith("blobs: ")
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


async def test_corrupt_blobs_all_the_way_down_mean_noise(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.put(entry.states[1].key, encode_state(np.ones((4, 16, 16), np.float32), "fp32"))
    await bench.blobs.put(entry.states[0].key, b"garbage")
    job = await bench.draw(bench.hit(entry, 4, fresh_noise=0.5))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS
    assert (job.plan.source, job.plan.start_step, job.plan.fresh_noise) == (PlanSource.NOISE, 0, 0.0)
    assert job.plan.degraded[0].endswith("generated from noise")
    assert job.plan.reason.startswith("Generated from noise after all: ")
    assert job.plan.reason.lower().count("generated from noise") == 1
    lost = [StateLost(entry.id, state.step, state.key) for state in reversed(entry.states)]
    assert await bench.told(StateLost, count=2) == lost


async def test_a_hole_is_told_under_the_k_of_the_run_that_left_it(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    await bench.blobs.delete([entry.states[1].key])
    job = await bench.draw(bench.hit(entry, 4, start_step=8), steps=20)
    assert job.result is not None, job.error
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


async def test_a_state_of_another_shape_is_a_hole(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    wrong = encode_state(np.zeros((4, 8, 8), np.float32), "fp32")
    sha256 = await bench.blobs.put(entry.states[1].key, wrong)
    job = await bench.draw(bench.hit(entry, 4, sources=(Source(entry.id, entry.states[1].key, sha256, "fp16"),)))
    assert job.result is not None, job.error
    assert (job.attempt, job.plan.start_step) == (1, 2)
    assert "(got (4, 8, 8))" in job.plan.degraded[0]
    assert await bench.told(StateLost) == [StateLost(entry.id, 4, entry.states[1].key)]


@pytest.mark.parametrize("trouble", ["codec", "store", "slow", "catalog", "beyond"])
async def test_a_failing_cache_never_fails_a_request(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    limit_s = 0.1 if trouble == "slow" else 5.0  # on a busy machine even a good read may take a tenth of a second
    async with running_worker(tmp_path, str(tiny_folder / "large"), fetch_timeout_s=limit_s) as bench:
        first = await bench.draw()
        entry = await bench.cache(first)
        plan, get = bench.hit(entry, 4), bench.blobs.get

        async def away(*_: object) -> Any:
            raise BlobUnavailableError("blobs.internal:9000: reset", retry_after_s=30.0, outside="does not answer")

        async def hangs(*_: object) -> bytes:
            await asyncio.sleep(60)
            return b""

        match trouble:
            case "codec":
                plan = replace(plan, sources=(replace(plan.first_source, codec="fp3"),))
            case "store":
                monkeypatch.setattr(bench.blobs, "get", away)
            case "slow":
                monkeypatch.setattr(bench.blobs, "get", hangs)
            case "catalog":
                await bench.blobs.delete([plan.state_key])
                monkeypatch.setattr(bench.backends.catalog.entries, "by_ids", away)
            case "beyond":
                plan = replace(plan, start_step=STEPS)
        job = await bench.draw(plan)
        monkeypatch.setattr(bench.blobs, "get", get)
        assert job.result is not None, job.error
        assert (job.attempt, job.failures) == (1, 0)
        assert job.plan.degraded
        assert "internal" not in f"{job.plan.degraded}{job.plan.reason}"  # clients read them
        assert job.result.steps_run == (STEPS - {"codec": 2, "beyond": 4}.get(trouble, 0))
        assert not bench.heard(StateLost)  # none of these says that the blob is gone for good


async def test_other_weights_are_a_miss(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    job = await bench.draw(bench.hit(entry, 4, weights_hash="0" * 16))
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS
    assert job.plan.degraded == ("weights: changed since the plan was made",)
    assert job.plan.weights_hash == bench.service._place.card.weights_hash


async def test_a_vanished_entry_means_noise(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    plan = bench.hit(entry, 4)
    await bench.backends.catalog.entries.drop_entries([entry.id])
    await bench.blobs.delete([state.key for state in entry.states])
    job = await bench.draw(plan)
    assert job.plan.source is PlanSource.NOISE


async def test_a_picture_starts_a_picture(bench: WorkerBench) -> None:
    first = await bench.draw()
    assert first.result is not None
    plan = replace(
        first.plan,
        source=PlanSource.IMAGE,
        start_step=6,
        sources=(Source("e", first.result.picture_key),),
        capture_steps=(),
    )
    job = await bench.draw(plan)
    assert job.result is not None, job.error
    assert job.result.steps_run == STEPS - 6


async def test_a_large_picture_is_decoded_beside_the_event_loop(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()

    def noted(data: bytes) -> Pixels:
        threads.append(threading.current_thread())
        return decode_png(data)

    monkeypatch.setattr(starts, "decode_png", noted)
    noise = np.random.default_rng(1).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    for key, pixels in (("large", noise), ("small", noise[:64, :64])):
        await bench.blobs.put(key, encode_png(pixels))
        plan = Plan(PlanSource.IMAGE, bench.model, 6, sources=(Source("e", key),), may_run=(ModelPlan(bench.model, 6),))
        job = await bench.draw(plan)
        assert job.result is not None, job.error
        assert (job.plan.degraded, job.result.steps_run) == ((), STEPS - 6)
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


async def test_the_state_that_a_task_names_is_read_while_its_job_is_claimed(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await bench.cache(await bench.draw())
    plan, claim, get, reads = bench.hit(entry, 4), bench.jobs.claim, bench.blobs.get, list[str]()
    begun = asyncio.Event()

    async def noted(key: str, sha256: str = "") -> bytes:
        reads.append(key)
        begun.set()
        return await get(key, sha256)

    async def waits_for_the_read(*given: Any) -> Job | None:
        await asyncio.wait_for(begun.wait(), 5)
        return await claim(*given)

    monkeypatch.setattr(bench.blobs, "get", noted)
    monkeypatch.setattr(bench.jobs, "claim", waits_for_the_read)
    job = await bench.accept(plan)
    await bench.backends.bus.send(job.lane, GenerateImage(job.id, plan.state_key, plan.state_sha256))
    done = await bench.final(job.id)
    assert (done.plan, reads) == (plan, [plan.state_key])
    assert done.result is not None
    assert done.result.steps_run == STEPS - 4


async def test_the_row_decides_where_a_job_starts_whatever_its_task_names(bench: WorkerBench) -> None:
    entry = await bench.cache(await bench.draw())
    plan, other = bench.hit(entry, 4), entry.states[0]
    job = await bench.accept(plan)
    await bench.backends.bus.send(job.lane, GenerateImage(job.id, other.key, other.sha256))
    done = await bench.final(job.id)
    assert done.plan == plan
    assert done.result is not None
    assert done.result.steps_run == STEPS - 4
