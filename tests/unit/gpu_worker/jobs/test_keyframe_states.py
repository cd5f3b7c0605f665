"""A clip's states of codec `keyframes` in a worker: stored together, read with their base, holes without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from services.gpu_worker.jobs.codecs import decode_state, needed_by
from shared.domain.errors import BlobUnavailableError
from shared.domain.messages import GenerateImage, StateLost, StateUsed, lane_of
from shared.domain.types import Entry, Job, Modality, Plan, PlanSource, Size
from tests import tiny_families
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

NOISE = Plan(source=PlanSource.NOISE, model="clips", capture_steps=(1, 2, 4))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_families.save(tmp_path_factory.mktemp("models") / "clips", "animatediff", channels=(16,))


@pytest.fixture
async def worker(clips: Path, tmp_path: Path) -> AsyncIterator[WorkerBench]:
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), state_codec="keyframes", keyframe_least=0.0
    ) as bench:
        yield bench


async def generated(bench: WorkerBench, plan: Plan = NOISE, **changes: object) -> Job:
    asked = {"modality": Modality.VIDEO, "frames": 6, "size": Size(16, 16), "steps": 6, **changes}
    job = await bench.accept(plan, **asked)
    await bench.backends.bus.send(lane_of("clips"), GenerateImage(job.id, frames=job.request.frames))
    return await bench.final(job.id)


def split(entry: Entry) -> tuple[int, list[int]]:
    """Return the base's step, and the steps that need it, largest first."""
    (base,) = (state.step for state in entry.states if not state.needs)
    assert {state.needs for state in entry.states} == {0, base}
    return base, sorted((state.step for state in entry.states if state.needs), reverse=True)


async def test_states_are_stored_together_and_start_clips_with_their_base(worker: WorkerBench) -> None:
    first = await generated(worker)
    assert first.result is not None, first.error
    entry = await worker.cache(first)
    assert [state.step for state in entry.states] == [1, 2, 4]
    blobs = {state.step: await worker.blobs.get(state.key, state.sha256) for state in entry.states}
    base, dependants = split(entry)
    assert len(blobs[base]) > max(len(blobs[step]) for step in dependants)
    at = {state.step: state for state in entry.states}
    needed = needed_by(blobs[dependants[0]], at[dependants[0]].codec)
    assert needed is not None
    assert needed == (base, at[base].sha256)
    for step in (dependants[0], base):
        job = await generated(worker, worker.hit(entry, step, model="clips"), seed=8)
        assert job.result is not None, job.error
        assert (job.result.steps_run, job.plan.degraded) == (6 - step, ())
        kept = decode_state(blobs[step], at[step].codec, blobs[base] if step != base else b"")
        assert kept.shape == (4, 6, 8, 8)
    used = await worker.told(StateUsed, count=2)
    assert used == [StateUsed(entry.id, dependants[0]), StateUsed(entry.id, base)]


@pytest.mark.parametrize("damage", ["gone", "other", "cut"])
async def test_without_its_base_a_state_is_a_hole(worker: WorkerBench, damage: str) -> None:
    entry = await worker.cache(await generated(worker))
    base, dependants = split(entry)
    state = next(state for state in entry.states if state.step == base)
    if damage == "gone":
        await worker.blobs.delete([state.key])
    else:
        data = await worker.blobs.get(state.key)
        await worker.blobs.put(state.key, data[::-1] if damage == "other" else data[:-1])
    job = await generated(worker, worker.hit(entry, dependants[0], model="clips"), seed=8)
    assert job.result is not None, job.error
    assert (job.plan.source, job.result.steps_run) == (PlanSource.NOISE, 6)
    assert job.plan.degraded[0].endswith("generated from noise")
    lost = {(one.step, one.key) for one in await worker.told(StateLost, count=len(entry.states))}
    assert (base, state.key) in lost


async def test_a_smaller_k_that_needs_no_base_starts_instead(worker: WorkerBench) -> None:
    entry = await worker.cache(await generated(worker))
    base, dependants = split(entry)
    later = [step for step in dependants if step > base]
    if not later:
        pytest.skip("the base is the last state of this model's runs")
    key = next(state.key for state in entry.states if state.step == later[0])
    await worker.blobs.delete([key])
    job = await generated(worker, worker.hit(entry, later[0], model="clips"), seed=8)
    assert job.result is not None, job.error
    assert 0 < job.plan.start_step < later[0]
    assert await worker.told(StateLost) == [StateLost(entry.id, later[0], key)]


async def test_a_run_that_fails_stores_no_states(worker: WorkerBench) -> None:
    plan = Plan(source=PlanSource.NOISE, model="clips", capture_steps=(1, 2))
    job = await worker.accept(plan, modality=Modality.VIDEO, frames=6, size=Size(16, 16), steps=6, deadline_s=1e-6,
                              drop_if_late=True)  # fmt: skip
    await worker.backends.bus.send(lane_of("clips"), GenerateImage(job.id, frames=6))
    assert (await worker.final(job.id)).result is None or not (await worker.final(job.id)).result.captured  # type: ignore[union-attr]
    assert await worker.keys("states") == []


async def test_images_of_such_a_worker_keep_their_values(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large"), state_codec="keyframes") as bench:
        job = await bench.draw()
        assert job.result is not None, job.error
        assert [state.codec for state in job.result.captured] == ["keyframes"] * 2
        for state in job.result.captured:
            kept = decode_state(await bench.blobs.get(state.key, state.sha256), state.codec)
            assert np.isfinite(kept).all()


async def test_a_state_that_the_store_refuses_is_a_hole_and_its_siblings_stay(
    worker: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, states = worker.blobs.put, list[str]()

    async def second_refused(key: str, data: bytes, **more: bool) -> str:
        if key.startswith("states/"):
            states.append(key)
            if len(states) == 2:
                raise BlobUnavailableError("the disk is full")
        return await put(key, data, **more)

    monkeypatch.setattr(worker.blobs, "put", second_refused)
    job = await generated(worker)
    assert job.result is not None, job.error
    assert [state.key for state in job.result.captured] == sorted(
        (states[0], states[2]), key=lambda key: int(key.rpartition("-")[2].partition(".")[0])
    )
