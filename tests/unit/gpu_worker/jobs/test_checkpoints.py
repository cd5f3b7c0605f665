"""A crashed job goes on from its checkpoint."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.events import Checkpointed
from services.gpu_worker.jobs import outputs as outputs_module
from services.gpu_worker.jobs import plan_resolution
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from services.gpu_worker.jobs.outputs import Outputs
from services.gpu_worker.jobs.state_codecs import StateCodecs
from shared.domain.types import Job, Size
from shared.models.k_table import NoProfiles
from tests.unit.gpu_worker.worker import STEPS, WorkerBench, running_worker


@pytest.mark.parametrize("sampler", ["ddim", "dpm++2m"])
async def test_a_crashed_attempt_resumes_from_its_checkpoint_to_the_bit(
    tiny_folder: Path, tmp_path: Path, logs: list[Any], sampler: str
) -> None:
    large, changes = str(tiny_folder / "large"), {"sampler": sampler, "lease_s": 0.3}
    async with running_worker(
        tmp_path, large, batch_invariant=2, state_codec="fp32", checkpoint_every_steps=3, **changes
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
        assert [(line["job"], line["step"]) for line in logs if line["event"] == "job resumed"] == [(job.id, 5)]
        assert np.array_equal(await bench.picture(resumed), await bench.picture(undisturbed))
        await bench.idle()
        assert saved not in await bench.keys("checkpoints/")


async def _checkpoint_of(bench: WorkerBench, job: Job, *, named: bool = True) -> str:
    """Runs a claimed job as far as its first checkpoint and leaves it there, like a worker that dies."""
    from services.gpu_worker.engine.engine import Engine
    from services.gpu_worker.jobs.plan_resolution import prepare
    from services.gpu_worker.jobs.starts import task_of

    prepared = await prepare(job, bench.service._place.families, bench.blobs, bench.backends.catalog.entries)
    engine = Engine({bench.model: bench.service._place.families[bench.model]})
    engine.submit(replace(task_of(job.id, job.request, prepared.plan, prepared.start), checkpoint_every=3))
    events: list[Any] = []
    while not (saved := [event for event in events if isinstance(event, Checkpointed)]):
        events += engine.step()
    key = f"checkpoints/{job.id}-dead"
    state = encode_checkpoint(
        saved[0].latent, saved[0].step, saved[0].generator_state, prepared.plan, previous=saved[0].previous
    )
    await bench.blobs.put(key, state)
    assert not named or await bench.jobs.checkpoint(job.id, job.attempt, key, saved[0].step)
    return key


async def test_a_stored_checkpoint_carries_the_samplers_history(bench: WorkerBench) -> None:
    job = await bench.accept()
    claimed = await bench.jobs.claim(job.id, "a", 5.0)
    assert claimed is not None
    outputs = Outputs(bench.backends, claimed, StateCodecs("fp32", NoProfiles()))
    latent, history = np.zeros((4, 16, 16), np.float32), np.ones((4, 16, 16), np.float32)
    outputs.checkpoint(Checkpointed(job.id, 3, latent, b"generator", previous=history), claimed.plan)
    assert outputs._saving is not None
    await outputs._saving
    start, _ = decode_checkpoint(await bench.blobs.get((await bench.jobs.get(job.id)).checkpoint_key))
    assert start.previous is not None
    assert np.array_equal(start.previous, history)


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


@pytest.mark.parametrize("row_names", ["the one before, which is gone", "the last", "none"])
async def test_a_checkpoint_that_the_catalog_forgot_is_found_by_its_name(
    tiny_folder: Path, tmp_path: Path, row_names: str
) -> None:
    """PostgreSQL that is killed forgets the last lazy commits, and the blob they replaced is gone by then."""
    async with running_worker(
        tmp_path, str(tiny_folder / "large"), batch_invariant=2, checkpoint_every_steps=3, lease_s=0.3
    ) as bench:
        job = await bench.accept()
        dead = await bench.jobs.claim(job.id, "dead", 0.01)
        assert dead is not None
        state = await bench.blobs.get(await _checkpoint_of(bench, dead, named=row_names != "none"))
        await bench.blobs.delete([f"checkpoints/{job.id}-dead"])
        last = f"checkpoints/{job.id}-1-3.safetensors"
        await bench.blobs.put(last, state)
        await bench.blobs.put(f"checkpoints/{job.id}-1-9.safetensors", b"torn")
        if row_names != "none":
            named = last if row_names == "the last" else f"checkpoints/{job.id}-1-2.safetensors"
            assert await bench.jobs.checkpoint(job.id, 1, named, 0)
        assert bool((await bench.jobs.get(job.id)).checkpoint_key) == (row_names != "none")
        await bench.send(job)
        resumed = await bench.final(job.id)
        assert resumed.result is not None, resumed.error
        assert (resumed.attempt, resumed.result.steps_run) == (2, STEPS - 3)
        await bench.idle()
        assert await bench.keys("checkpoints/") == []


async def test_a_clips_checkpoint_is_encoded_and_decoded_beside_the_event_loop(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(work: Any) -> Any:
        def run(*given: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*given)

        return run

    monkeypatch.setattr(outputs_module, "encode_checkpoint", noted(encode_checkpoint))
    monkeypatch.setattr(plan_resolution, "decode_checkpoint", noted(decode_checkpoint))
    job = await bench.accept(size=Size(256, 256), frames=4)
    claimed = await bench.jobs.claim(job.id, "a", 5.0)
    assert claimed is not None
    outputs = Outputs(bench.backends, claimed, StateCodecs("fp32", NoProfiles()))
    latent = np.zeros((4, 4, 64, 64), np.float32)
    outputs.checkpoint(Checkpointed(job.id, 3, latent, b"generator"), claimed.plan)
    assert outputs._saving is not None
    await outputs._saving
    row = await bench.jobs.get(job.id)
    families = bench.service._place.families
    await plan_resolution.prepare(row, families, bench.blobs, bench.backends.catalog.entries)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
