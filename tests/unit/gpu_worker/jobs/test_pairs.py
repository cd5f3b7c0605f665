"""A clip that is stitched from two others: what it starts from, what its row determines, and what a lost part costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.noises import noise_within, seed_of
from services.gpu_worker.engine.rows import NO_WINDOWS, FromState, first_noise
from services.gpu_worker.jobs import residual
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state, needed_by, noises_of
from services.gpu_worker.jobs.outputs import state_key_beside
from services.gpu_worker.jobs.stitching import stitch
from shared.domain.masks import MASK_STEP, Mask, mask_key, pack, taken_cells
from shared.domain.messages import GenerateImage, StateLost, StateUsed, lane_of
from shared.domain.types import Entry, Job, Modality, Plan, PlanSource, Size, Source
from tests import tiny_families
from tests.redraw import redraw
from tests.unit.gpu_worker.jobs.test_clips import checkpoints_of, resumed_from
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

ASKED: dict[str, Any] = {"modality": Modality.VIDEO, "frames": 4, "size": Size(16, 16), "steps": 6, "guidance": 1.0}
NOISE = Plan(source=PlanSource.NOISE, model="clips", capture_steps=(2, 4))
FRAMES, SIDE = 4, 8
"""Frames of a clip, and cells along each side of its latent."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_families.save(tmp_path_factory.mktemp("models") / "clips", "animatediff", channels=(16,))


async def clip(bench: WorkerBench, plan: Plan = NOISE, **changes: Any) -> Job:
    job = await bench.accept(plan, **{**ASKED, **changes})
    await bench.backends.bus.send(lane_of("clips"), GenerateImage(job.id, frames=job.request.frames))
    return await bench.final(job.id, 120.0)


def thing(side: int = SIDE) -> np.ndarray:
    """An object that moves to the right, on `side` cells squared."""
    mask, cell = np.zeros((FRAMES, side, side), bool), side // 8
    for frame in range(FRAMES):
        mask[frame, 2 * cell : 5 * cell, frame * cell : (frame + 2) * cell] = True
    return mask


async def entry(bench: WorkerBench, seed: int, plan: Plan = NOISE) -> Entry:
    """A clip in the cache, with masks."""
    made = await bench.cache(await clip(bench, plan, seed=seed))
    data = pack(thing(), ~np.roll(thing(), 1, axis=1))
    key = mask_key(made.job_id, f"{seed:064d}")
    mask = Mask(key, await bench.blobs.put(key, data), len(data))
    assert await bench.backends.catalog.entries.note_mask(made.job_id, mask)
    return replace(made, mask=mask)


def pair(bench: WorkerBench, ours: Entry, theirs: Entry, step: int = 2, **changes: Any) -> Plan:
    def source(one: Entry) -> Source:
        state = next(state for state in one.states if state.step == step)
        assert one.mask is not None
        return Source(one.id, state.key, state.sha256, state.codec, one.mask.key, one.mask.sha256)

    plan = Plan(
        PlanSource.STITCHED, "clips", step, sources=(source(ours), source(theirs)), root=ours.id,
        background_root=theirs.id, weights_hash=ours.compat.weights_hash,
    )  # fmt: skip
    return replace(plan, **changes)


def whole(bench: WorkerBench, one: Entry) -> Plan:
    return replace(bench.hit(one, 2), model="clips")


async def test_a_stitched_clip_is_a_function_of_its_row(clips: Path, tmp_path: Path) -> None:
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), batch_invariant=1, state_codec="fp32"
    ) as bench:
        ours, theirs = await entry(bench, 1), await entry(bench, 2)
        plan = pair(bench, ours, theirs, fresh_noise=0.25, noise_seed=99, capture_steps=(4,))
        job, _ = await asyncio.gather(clip(bench, plan, seed=3), clip(bench, seed=5))
        assert job.result is not None, job.error
        assert job.plan.degraded == ()
        assert (job.result.steps_run, job.plan) == (4, plan)
        assert [one.step for one in job.result.captured] == [4]
        told = {(one.entry_id, one.step) for one in await bench.told(StateUsed, count=2)}
        assert told == {(ours.id, 2), (theirs.id, 2)}
        latents = [decode_state(await bench.blobs.get(one.key), one.codec) for one in plan.sources]
        latent = stitch(latents[0], latents[1], thing(), ~np.roll(thing(), 1, axis=1))
        family = bench.service._place.families["clips"]
        again = redraw(family, job.request, job.plan, start=FromState(latent, 2, 0.25, 99))
        assert encode_png(again.pixels, family.card.frames.fps) == await bench.blobs.get(job.result.picture_key)
        # a pair of one clip with itself is that clip
        same = await clip(bench, pair(bench, ours, ours), seed=1)
        assert np.array_equal(await bench.picture(same), await bench.picture(await bench.jobs.get(ours.job_id)))


async def test_a_killed_worker_leaves_a_stitched_clip_that_goes_on_bit_identical(clips: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"batch_invariant": 2, "state_codec": "fp32", "checkpoint_every_steps": 3}
    async with running_worker(tmp_path, "noop:?name=large", video=str(clips), **changes) as bench:
        plan = pair(bench, await entry(bench, 1), await entry(bench, 2), fresh_noise=0.25, noise_seed=9)
        saved = checkpoints_of(bench)
        whole = await clip(bench, plan, seed=3)
        assert whole.result is not None, whole.error
        await bench.blobs.delete([key for one in plan.sources for key in (one.key, one.mask_key)])
        again = await resumed_from(bench, saved[0], plan, plan, **ASKED, seed=3)
        assert again.result is not None, again.error
        assert (again.plan, again.result.steps_run) == (plan, 6 - saved[0].step)
        assert np.array_equal(await bench.picture(again), await bench.picture(whole))


LOSSES = [
    ("object", "state", "gone"),
    ("background", "state", "corrupt"),
    ("background", "state", "shape"),
    ("object", "mask", "gone"),
    ("object", "mask", "corrupt"),
    ("background", "mask", "shape"),
]


async def test_a_lost_part_costs_the_pair_alone(clips: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, "noop:?name=large", video=str(clips), state_codec="fp32") as bench:
        ours, theirs = await entry(bench, 1), await entry(bench, 2)
        for part, blob, how in LOSSES:
            bench.facts.clear()
            damaged, other = (ours, theirs) if part == "object" else (theirs, ours)
            plan = pair(bench, ours, theirs, fallback=whole(bench, other))
            source = plan.sources[part == "background"]
            key = source.key if blob == "state" else source.mask_key
            kept = await bench.blobs.get(key)
            if how == "gone":
                await bench.blobs.delete([key])
            elif how == "corrupt":
                await bench.blobs.put(key, b"garbage")
            else:
                data = pack(thing()[:1], thing()[:1])
                if blob == "state":
                    data = encode_state(decode_state(kept, source.codec)[:, :1], source.codec)
                sha256 = await bench.blobs.put(key, data)
                changed = replace(source, sha256=sha256) if blob == "state" else replace(source, mask_sha256=sha256)
                plan = replace(plan, sources=tuple(changed if one == source else one for one in plan.sources))
            job = await clip(bench, plan, seed=3)
            assert job.result is not None, job.error
            assert (job.attempt, job.failures) == (1, 0)
            assert (job.plan.source, job.plan.start_step, job.plan.fallback) == (PlanSource.LATENT, 2, None)
            assert job.plan.entry_id == other.id
            assert "starts from one entry instead of a pair" in job.plan.degraded[0]
            assert await bench.told(StateLost) == [StateLost(damaged.id, 2 if blob == "state" else MASK_STEP, key)]
            await bench.blobs.put(key, kept)


async def test_without_another_start_it_runs_from_noise(clips: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, "noop:?name=large", video=str(clips)) as bench:
        ours, theirs = await entry(bench, 1), await entry(bench, 2)
        plan = pair(bench, ours, theirs)
        keys = [plan.sources[0].mask_key, plan.sources[1].key]
        await bench.blobs.delete(keys)
        job = await clip(bench, plan, seed=3)
        assert job.result is not None, job.error
        assert (job.plan.source, job.plan.roots, job.result.steps_run) == (PlanSource.NOISE, (), 6)
        lost = {(one.entry_id, one.step, one.key) for one in await bench.told(StateLost, count=2)}
        assert lost == {(ours.id, MASK_STEP, keys[0]), (theirs.id, 2, keys[1])}
        other = await clip(bench, pair(bench, ours, theirs, 4, weights_hash="older"), seed=3)
        assert (other.plan.source, other.plan.degraded) == (
            PlanSource.NOISE, ("weights: changed since the plan was made",),
        )  # fmt: skip


async def test_an_image_is_stitched_by_the_same_code(bench: WorkerBench) -> None:
    """With `decouple=all`: an image is a clip of one frame."""
    entries = []
    for seed in (1, 2):
        made = await bench.cache(await bench.draw(seed=seed))
        data = pack(thing(16)[:1], ~thing(16)[:1])
        key = mask_key(made.job_id, f"{seed:064d}")
        entries.append(replace(made, mask=Mask(key, await bench.blobs.put(key, data), len(data))))
    plan = replace(pair(bench, entries[0], entries[1]), model=bench.model)
    job = await bench.draw(plan, seed=3)
    assert job.result is not None, job.error
    assert (job.plan, job.result.steps_run) == (plan, 8)
    latents = [decode_state(await bench.blobs.get(one.key), one.codec) for one in plan.sources]
    start = FromState(stitch(latents[0], latents[1], thing(16)[:1], ~thing(16)[:1]), 2)
    again = redraw(bench.service._place.families[bench.model], job.request, job.plan, start=start)
    assert np.array_equal(again.pixels, await bench.picture(job))


async def test_a_pair_of_key_frames_reads_the_base_of_each_state(clips: Path, tmp_path: Path) -> None:
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), batch_invariant=1, state_codec="keyframes", keyframe_least=0.0
    ) as bench:
        more = replace(NOISE, capture_steps=(1, 2, 4))
        ours, theirs = await entry(bench, 1, more), await entry(bench, 2, more)
        need = [{state.step for state in one.states if state.needs} for one in (ours, theirs)]
        step = max(need[0] & need[1])
        plan = pair(bench, ours, theirs, step)
        job = await clip(bench, plan, seed=3)
        assert job.result is not None, job.error
        assert (job.result.steps_run, job.plan) == (6 - step, plan)
        latents, bases = [], []
        for one in plan.sources:
            data = await bench.blobs.get(one.key)
            needed = needed_by(data, one.codec)
            assert needed is not None
            bases.append(state_key_beside(one.key, needed.step))
            latents.append(decode_state(data, one.codec, await bench.blobs.get(bases[-1], needed.sha256)))
        latent = stitch(latents[0], latents[1], thing(), ~np.roll(thing(), 1, axis=1))
        family = bench.service._place.families["clips"]
        again = redraw(family, job.request, job.plan, start=FromState(latent, step))
        assert encode_png(again.pixels, family.card.frames.fps) == await bench.blobs.get(job.result.picture_key)
        # without its base, the background's state is a hole of its own entry, as is the base
        base = next(state for state in theirs.states if not state.needs)
        for corrupt in (True, False):
            bench.facts.clear()
            if corrupt:
                await bench.blobs.put(bases[1], b"garbage")
            else:
                await bench.blobs.delete([bases[1]])
            job = await clip(bench, plan, seed=3)
            assert job.result is not None, job.error
            assert (job.plan.source, job.result.steps_run) == (PlanSource.NOISE, 6)
            lost = {(one.entry_id, one.step, one.key) for one in await bench.told(StateLost, count=2)}
            assert lost == {(theirs.id, base.step, bases[1]), (theirs.id, step, plan.sources[1].key)}


async def test_a_residual_pair_leaves_states_with_the_noise_of_both(clips: Path, tmp_path: Path) -> None:
    """The noise that each state names is, bit for bit, that of the run it was stitched from."""
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), batch_invariant=1, state_codec="residual-1bit"
    ) as bench:
        ours, theirs = await entry(bench, 1), await entry(bench, 2)
        plan = pair(bench, ours, theirs, fresh_noise=0.25, noise_seed=99, capture_steps=(4,))
        job = await clip(bench, plan, seed=3)
        assert job.result is not None, job.error
        (kept,) = job.result.captured
        taken = taken_cells(thing(), ~np.roll(thing(), 1, axis=1)).ravel()
        data = await bench.blobs.get(kept.key)
        noises = (noise_within(1, taken), noise_within(2, ~taken), 99)
        assert noises_of(data, kept.codec) == noises
        shape = bench.service._place.families["clips"].latent_shape(job.request.size, job.request.frames)
        for noise, share in zip(noises, (taken, ~taken, np.ones_like(taken)), strict=True):
            drawn = first_noise(seed_of(noise), shape).numpy() * share.reshape(shape[1:])
            assert np.array_equal(residual._noise(noise, shape, NO_WINDOWS), drawn)
        # the next generation has the seeds of both, too
        child = await bench.cache(job)
        mask = Mask(ours.mask.key, ours.mask.sha256, ours.mask.bytes) if ours.mask else None
        again = await clip(bench, pair(bench, replace(child, mask=mask), theirs, 4, capture_steps=(5,)), seed=4)
        assert again.result is not None, again.error
        found = noises_of(await bench.blobs.get(again.result.captured[0].key), kept.codec)
        assert {seed_of(one) for one in found} == {1, 2, 99}


async def test_a_corrupt_seed_is_a_hole(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker(tmp_path, "noop:?name=large", video=str(clips), state_codec="residual") as bench:
        ours, theirs = await entry(bench, 1), await entry(bench, 2)
        plan = pair(bench, ours, theirs)
        source = plan.sources[1]
        data = await bench.blobs.get(source.key)
        assert noises_of(data, source.codec) == (2,)
        at = data.index(bytes([2]), 6)  # past version, cell and shape
        await bench.blobs.put(source.key, data[:at] + b"\x03" + data[at + 1 :])
        job = await clip(bench, plan, seed=3)
        assert job.result is not None, job.error
        assert (job.plan.source, job.failures) == (PlanSource.NOISE, 0)
        assert await bench.told(StateLost) == [StateLost(theirs.id, 2, source.key)]
        # noise of another torch costs the pair, but the state may be right elsewhere
        bench.facts.clear()
        await bench.blobs.put(source.key, data)
        monkeypatch.setattr(residual, "is_same_generator", lambda: False)
        job = await clip(bench, plan, seed=3)
        assert job.result is not None, job.error
        assert job.plan.source is PlanSource.NOISE
        assert "draws other noise" in job.plan.degraded[0]
        assert not [one for one in bench.facts if isinstance(one, StateLost)]
