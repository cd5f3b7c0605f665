"""What the catalog promises about pictures that can be started from, and about jobs that change their lane."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shared.catalog import Catalog
from shared.domain.types import PICTURE_STEP, Entry, ModelPlan, Plan, PlanSource, Source, State, vector_bytes
from tests.contracts.nouns import LEASE_S, a_result, a_vector, accepted, an_entry

PLAN = Plan(
    PlanSource.IMAGE,
    "small",
    10,
    sources=(Source("e", "p"),),
    may_run=(ModelPlan("small", 10, 1.0),),
    miss_model="tiny",
)


def with_picture(steps: tuple[int, ...] = (5,), **fields: str) -> Entry:
    entry = an_entry(steps=steps, **fields)
    picture = State(entry.id, PICTURE_STEP, entry.picture_key, 300, "png", "ab")
    return dataclasses.replace(entry, states=(picture, *entry.states))


def seven(*entry_ids: str) -> dict[str, bytes]:
    """The same embedding for each."""
    return dict.fromkeys(entry_ids, vector_bytes(a_vector(7)))


async def add(catalog: Catalog, entry: Entry) -> Entry:
    named = {"whole": vector_bytes(a_vector(1))} if entry.latents else {}
    assert await catalog.entries.add(entry, named)
    return await catalog.entries.get(entry.id)


async def test_a_picture_is_a_state_that_is_counted_apart(catalog: Catalog) -> None:
    entry = await add(catalog, with_picture())
    assert entry.picture is not None
    assert (entry.picture.key, [state.step for state in entry.latents]) == (entry.picture_key, [5])
    totals = await catalog.entries.totals()
    assert (totals.entries, totals.states, totals.bytes, totals.pictures, totals.picture_bytes) == (1, 1, 64, 1, 300)
    await catalog.entries.used([(entry.id, PICTURE_STEP, 2e9)])
    used = (await catalog.entries.get(entry.id)).picture
    assert used is not None
    assert (used.uses, used.used_at) == (1, 2e9)


async def test_pictures_wait_for_their_embedding_in_order(catalog: Catalog) -> None:
    for name in ("e1", "e2", "e3"):
        await add(catalog, with_picture(id=name))
    await add(catalog, an_entry(id="e4"))  # has none
    assert [one.id for one in await catalog.entries.unembedded(2)] == ["e1", "e2"]
    assert [one.id for one in await catalog.entries.unembedded(2, "e2")] == ["e3"]
    assert await catalog.entries.embedded(seven("e1"), "clip-1") == {"e1": True}
    assert [one.id for one in await catalog.entries.unembedded()] == ["e2", "e3"]
    await catalog.entries.drop_states([("e2", PICTURE_STEP)])
    assert [one.id for one in await catalog.entries.unembedded()] == ["e3"]
    assert await catalog.entries.embedded(seven("e2", "nope"), "clip-1") == {}
    assert await catalog.entries.embedded({}, "clip-1") == {}


async def test_a_picture_of_another_encoder_than_the_prompts_is_not_kept(catalog: Catalog) -> None:
    entry = await add(catalog, with_picture())
    bare = await add(catalog, dataclasses.replace(with_picture(steps=()), encoder_hash=""))
    assert await catalog.entries.embedded(seven(entry.id, bare.id), "clip-2") == {entry.id: False, bare.id: True}
    assert [one.id for one in await catalog.entries.unembedded()] == [entry.id]
    assert (await catalog.entries.get(bare.id)).encoder_hash == "clip-2"


async def test_an_entry_is_indexed_under_what_can_be_had_from_it(catalog: Catalog) -> None:
    entry = await add(catalog, with_picture(id="e1"))
    assert await catalog.entries.live(["e1", "nope"]) == {"e1": {"prompt"}}
    await catalog.entries.embedded(seven("e1"), "clip-1")
    await catalog.entries.embedded({"e1": vector_bytes(a_vector(8))}, "clip-1")  # again, and newer
    assert await catalog.entries.live(["e1"]) == {"e1": {"prompt", "image"}}
    (item,), live = await catalog.entries.placed(["nope", "e1"])
    assert live == {"e1": {"prompt", "image"}}
    assert [one.entry_id for one in await catalog.entries.items_of(["e1"])] == [item.entry_id]
    assert set(item.vectors) == {"whole", "image"}
    np.testing.assert_array_equal(item.vectors["image"], a_vector(8))

    await catalog.entries.drop_states([("e1", 5)])
    assert await catalog.entries.live(["e1"]) == {"e1": {"image"}}
    assert [set(item.vectors) for item in await catalog.entries.items()] == [{"image"}]
    await catalog.entries.drop_states([("e1", PICTURE_STEP)])
    assert await catalog.entries.live(["e1"]) == {}
    assert await catalog.entries.items() == []
    assert entry.picture is not None
    assert await catalog.entries.referenced([entry.picture.key]) == {entry.picture.key}  # for exact repeats


async def test_a_picture_without_latents_is_indexed_once_it_is_embedded(catalog: Catalog) -> None:
    await add(catalog, with_picture(steps=(), id="e1"))
    assert await catalog.entries.items() == []
    assert await catalog.entries.live_ids() == []
    await catalog.entries.embedded(seven("e1"), "clip-1")
    assert await catalog.entries.live_ids() == ["e1"]


async def test_an_expired_job_leaves_the_picture_that_the_cache_still_has(catalog: Catalog) -> None:
    job = await accepted(catalog)
    assert await catalog.jobs.claim(job.id, "w", LEASE_S)
    result = a_result(job.id)
    assert await catalog.jobs.finish(job.id, 1, result)
    entry = dataclasses.replace(with_picture(job_id=job.id, steps=()), picture_key=result.picture_key)
    await add(catalog, entry)
    assert await catalog.jobs.expire(-1.0) == []
    assert await catalog.entries.spent() == []
    await catalog.entries.drop_states([(entry.id, PICTURE_STEP)])
    assert await catalog.entries.spent() == [entry.id]


async def test_a_claimed_job_moves_to_another_lane_with_its_new_plan(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.confirm([job.id])
    assert not await catalog.jobs.move(job.id, 1, "generate.small", PLAN)  # nobody's yet
    assert await catalog.jobs.claim(job.id, "w", LEASE_S)
    assert not await catalog.jobs.move(job.id, 2, "generate.small", PLAN)
    assert await catalog.jobs.move(job.id, 1, "generate.small", PLAN)
    moved = await catalog.jobs.get(job.id)
    assert (moved.state.value, moved.lane, moved.plan, moved.worker) == ("queued", "generate.small", PLAN, "")
    assert (moved.failures, moved.crashes, moved.confirmed) == (0, 0, False)
    again = await catalog.jobs.claim(job.id, "w2", LEASE_S)
    assert again is not None
    assert (again.attempt, again.plan) == (2, PLAN)


async def test_lanes_tell_how_long_their_oldest_job_has_waited(catalog: Catalog) -> None:
    lanes = ("generate.a", "generate.b", "generate.c")
    first, second, other = [await accepted(catalog, lane=lane) for lane in ("generate.a", "generate.a", "generate.b")]
    await accepted(catalog, lane="generate.d")
    waits = await catalog.jobs.waits(lanes)
    assert set(waits) == {"generate.a", "generate.b"}
    assert waits["generate.a"] - waits["generate.b"] == pytest.approx(other.created_at - first.created_at, abs=0.1)
    assert await catalog.jobs.claim(first.id, "w", LEASE_S)
    await catalog.jobs.cancel(other.id)
    later = await catalog.jobs.waits(lanes)
    assert set(later) == {"generate.a"}
    assert 0 <= later["generate.a"] < 60
    assert await catalog.jobs.claim(second.id, "w", LEASE_S)
    assert await catalog.jobs.waits(lanes) == {}
    assert await catalog.jobs.waits(()) == {}


async def test_waiting_jobs_are_rerouted_unless_they_were_claimed(catalog: Catalog) -> None:
    both = [await accepted(catalog, lane="generate.a") for _ in range(2)]
    first, second = sorted(both, key=lambda job: job.id)  # ids of one millisecond are in any order
    other = await accepted(catalog, lane="generate.b")
    assert [job.id for job in await catalog.jobs.waiting("generate.a")] == [first.id, second.id]
    assert [job.id for job in await catalog.jobs.waiting("generate.a", 1)] == [first.id]
    assert await catalog.jobs.claim(second.id, "w", LEASE_S)
    assert not await catalog.jobs.reroute(second.id, 0, "generate.refine", PLAN)
    assert await catalog.jobs.reroute(first.id, 0, "generate.refine", PLAN)
    assert await catalog.jobs.waiting("generate.a") == []
    (moved,) = await catalog.jobs.waiting("generate.refine")
    assert (moved.id, moved.plan, moved.confirmed) == (first.id, PLAN, False)
    assert (await catalog.jobs.get(other.id)).lane == "generate.b"
