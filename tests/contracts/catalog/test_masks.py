"""What the catalog promises about masks and the embeddings of a prompt's parts (FlexCache §4.2)."""

from __future__ import annotations

import dataclasses

import pytest

from shared.catalog import Catalog
from shared.domain.exact_repeats import entry_of
from shared.domain.masks import Mask
from shared.domain.parts import Parts
from shared.domain.types import Job, State, vector_bytes
from tests.contracts.nouns import LEASE_S, a_job, a_result, a_vector, an_entry

MASK, OTHER = Mask("masks/one", "aa", 70), Mask("masks/two", "bb", 80)
PARTS = Parts("a red cube", "")


async def segmentable(catalog: Catalog) -> Job:
    """A finished job with the embeddings of both parts."""
    given = a_job()
    given = dataclasses.replace(
        given,
        object_vector=vector_bytes(a_vector(2)),
        background_vector=vector_bytes(a_vector(3)),
        plan=dataclasses.replace(given.plan, parts=PARTS),
    )
    job, _ = await catalog.jobs.accept(given)
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id))
    return await catalog.jobs.get(job.id)


async def cached(catalog: Catalog, job_id: str) -> Job:
    """The job's entry as the maintainer writes it."""
    job = await catalog.jobs.get(job_id)
    entry = entry_of(job)
    assert entry is not None
    states = (State(entry.id, 5, f"states/{job_id}/1/5", 64, "raw", "cd"),)
    assert await catalog.entries.add(dataclasses.replace(entry, states=states), job.vectors)
    return job


async def test_an_entry_has_three_embeddings_and_one_set_of_latents(catalog: Catalog) -> None:
    job = await segmentable(catalog)
    assert set(job.vectors) == {"whole", "object", "background"}
    await cached(catalog, job.id)
    (item,) = await catalog.entries.items()
    assert {name: vector.tobytes() for name, vector in item.vectors.items()} == job.vectors
    entry = await catalog.entries.get(job.id)
    assert (entry.parts, len(entry.latents)) == (PARTS, 1)


@pytest.mark.parametrize("first", ["mask", "entry"])
async def test_masks_are_noted_in_either_order_and_once(catalog: Catalog, first: str) -> None:
    job = await segmentable(catalog)
    if first == "mask":
        assert await catalog.entries.note_mask(job.id, MASK)
        assert (await catalog.jobs.get(job.id)).mask == MASK
        assert await catalog.entries.referenced([MASK.key]) == {MASK.key}
    await cached(catalog, job.id)
    for _ in range(2):
        assert await catalog.entries.note_mask(job.id, MASK)
    assert not await catalog.entries.note_mask(job.id, OTHER)
    assert (await catalog.entries.get(job.id)).mask == MASK
    assert (await catalog.jobs.get(job.id)).mask is None
    assert await catalog.entries.referenced([MASK.key, OTHER.key]) == {MASK.key}
    assert (await catalog.entries.totals()).bytes == 64 + 70
    assert await catalog.entries.mask_sizes() == {job.id: 70}


async def test_lost_masks_make_room_for_others(catalog: Catalog) -> None:
    job = await segmentable(catalog)
    await cached(catalog, job.id)
    await catalog.entries.note_mask(job.id, MASK)
    assert await catalog.entries.drop_masks([job.id], OTHER.key) == []
    assert await catalog.entries.drop_masks([job.id], MASK.key) == [MASK.key]
    assert (await catalog.entries.get(job.id)).mask is None
    assert await catalog.entries.note_mask(job.id, OTHER)
    assert await catalog.entries.drop_masks([job.id]) == [OTHER.key]


async def test_masks_of_nothing_are_of_no_use(catalog: Catalog) -> None:
    assert not await catalog.entries.note_mask("gone", MASK)
    await catalog.entries.add(an_entry(job_id="without", steps=()), {})
    assert not await catalog.entries.note_mask("without", MASK)


async def test_an_expired_job_leaves_its_masks_for_deletion(catalog: Catalog) -> None:
    job = await segmentable(catalog)
    await catalog.entries.note_mask(job.id, MASK)
    assert MASK.key in await catalog.jobs.expire(-1.0)
