"""What the catalog promises about cache entries, profiles and blob references."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import traceback
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from shared.catalog import Catalog, Totals
from shared.catalog.entries.entry_rows import row_of
from shared.catalog.tables import entries
from shared.domain.errors import AfterimageError, NotFoundError
from shared.domain.exact_repeats import entry_of
from shared.domain.types import CacheMode, Entry, IndexFilter, State, vector_bytes, visible_owners
from shared.index.memory import MemoryIndex
from shared.index.rebuild import rebuild_index
from tests.contracts.nouns import COMPAT, OWNER, a_job, a_result, a_vector, an_entry, finished

LEASE_S = 60.0


async def add(catalog: Catalog, entry: Entry, seed: int = 1) -> Entry:
    assert await catalog.entries.add(entry, {"whole": vector_bytes(a_vector(seed))})
    return await catalog.entries.get(entry.id)


async def test_an_entry_is_read_back_whole(catalog: Catalog, replica: Catalog) -> None:
    sent = an_entry(steps=(10, 5, 25))
    await add(catalog, sent)
    read = await replica.entries.get(sent.id)
    assert read.created_at > 1.7e9
    states = tuple(
        dataclasses.replace(state, created_at=read.created_at, used_at=read.created_at)
        for state in sorted(sent.states, key=lambda state: state.step)
    )
    assert read == dataclasses.replace(sent, created_at=read.created_at, states=states)
    assert await replica.entries.by_ids([sent.id, "nope"]) == {sent.id: read}
    assert await catalog.entries.by_ids([]) == {}
    with pytest.raises(NotFoundError, match="nope"):
        await catalog.entries.get("nope")


async def test_an_entry_keeps_its_root_and_seed(catalog: Catalog, replica: Catalog) -> None:
    first = await add(catalog, replace(an_entry(), seed=2**64 - 1))
    own = await add(catalog, replace(an_entry(), root="the-first", seed=0))
    older = await add(catalog, an_entry())
    read = await replica.entries.by_ids([first.id, own.id, older.id])
    assert [(read[one.id].root_id, read[one.id].seed) for one in (first, own, older)] == [
        (first.id, 2**64 - 1), ("the-first", 0), (older.id, None)
    ]  # fmt: skip


async def test_an_entry_keeps_the_length_of_its_clip_and_is_found_by_it(catalog: Catalog, replica: Catalog) -> None:
    image = await add(catalog, an_entry())
    clip = await add(catalog, replace(an_entry(), compat=replace(COMPAT, frames=16)))
    read = await replica.entries.by_ids([image.id, clip.id])
    assert [read[one.id].compat.frames for one in (image, clip)] == [1, 16]
    found = {item.entry_id: item.compat for item in await replica.entries.items()}
    assert found == {image.id: str(COMPAT), clip.id: f"{COMPAT}x16"}


async def test_a_duplicate_of_a_job_adds_nothing(catalog: Catalog) -> None:
    first = await add(catalog, an_entry(job_id="j"))
    assert not await catalog.entries.add(an_entry(job_id="j"), {"whole": b""})
    assert not await catalog.entries.add(first, {"whole": b""})
    assert (await catalog.entries.totals()).entries == 1
    assert await catalog.entries.get(first.id) == first
    for _ in range(2):  # entries of no job do not exclude each other
        assert await catalog.entries.add(dataclasses.replace(an_entry(), job_id=""), {})


async def test_a_dropped_state_is_a_hole(catalog: Catalog) -> None:
    entry = await add(catalog, an_entry(steps=(5, 10, 15)))
    dropped = await catalog.entries.drop_states([(entry.id, 10), (entry.id, 99), ("nope", 5)])
    assert dropped == [entry.states[1]]
    assert [state.step for state in (await catalog.entries.get(entry.id)).states] == [5, 15]
    assert await catalog.entries.drop_states([(entry.id, 10)]) == []
    assert await catalog.entries.drop_states([]) == []


async def test_dropped_entries_take_states_and_vectors_along(catalog: Catalog) -> None:
    gone, stays = await add(catalog, an_entry()), await add(catalog, an_entry())
    assert await catalog.entries.drop_entries([gone.id, "nope"]) == [gone]
    assert await catalog.entries.states() == list(stays.states)
    assert [item.entry_id for item in await catalog.entries.items()] == [stays.id]
    assert await catalog.entries.totals() == Totals(entries=1, states=2, bytes=128)


async def test_totals_of_nothing(catalog: Catalog) -> None:
    assert await catalog.entries.totals() == Totals(0, 0, 0)


async def test_uses_count_and_only_move_forward(catalog: Catalog) -> None:
    entry = await add(catalog, an_entry())
    later = entry.created_at + 100.0
    await catalog.entries.used([(entry.id, 5, later), (entry.id, 5, later - 50), (entry.id, 99, later), ("no", 5, 1.0)])
    await catalog.entries.used([])
    used, unused = (await catalog.entries.get(entry.id)).states
    assert (used.uses, used.used_at) == (2, later)
    assert unused == entry.states[1]


async def test_the_least_recently_used_of_a_tenant_is_chosen_by_whole_entries(catalog: Catalog) -> None:
    for entry_id in ("first", "second", "third", "other"):
        entry = an_entry(id=entry_id)
        tenant = "rival" if entry_id == "other" else "acme"
        assert await catalog.entries.add(dataclasses.replace(entry, tenant=tenant), {})
    for entry_id in ("second", "first"):
        await catalog.entries.used([(entry_id, 5, (await catalog.entries.get("third")).created_at + 9)])
    await catalog.entries.used([("first", 10, (await catalog.entries.get("third")).created_at + 10)])
    assert await catalog.entries.bytes_by_tenant() == {"acme": 3 * 128, "rival": 128}
    chosen = [await catalog.entries.least_recently_used("acme", size) for size in (1, 128, 129, 10**6)]
    named = [sorted({state.entry_id for state in states}) for states in chosen]
    assert named == [["third"], ["third"], ["second", "third"], ["first", "second", "third"]]
    assert [len(states) for states in chosen] == [2, 2, 4, 6]


async def test_exact_repeats_stay_in_scope_and_give_the_newest(catalog: Catalog) -> None:
    await add(catalog, an_entry(id="e1", exact_key="same"))
    await add(catalog, an_entry(id="e2", exact_key="same"))
    await add(catalog, an_entry(id="e3", exact_key="same", user="bob"))
    found = await catalog.entries.exact("same", "default", visible_owners("default", "alice"))
    assert found is not None
    assert found.id == "e2"
    assert len(found.states) == 2
    found = await catalog.entries.exact("same", "default", visible_owners("default", "bob"))
    assert found is not None
    assert found.id == "e3"
    assert await catalog.entries.exact("same", "other", visible_owners("other", "alice")) is None
    assert await catalog.entries.exact("same", "other", [OWNER]) is None  # whatever it may start from
    assert await catalog.entries.exact("another", "default", [OWNER]) is None
    assert await catalog.entries.exact("same", "default", []) is None


async def test_the_same_request_of_others_costs_no_time(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an entry nor a job of others may be read: the time of an answer would tell of them."""
    await add(catalog, an_entry(id="e1", exact_key="same", user="bob"))
    job = await finished(catalog)
    read = list[Any]()
    monkeypatch.setattr("shared.catalog.entries.entries.EXACT", read)  # no statement: running it raises

    def noted(rows: list[Any]) -> list[Any]:
        read.extend(rows)
        return []

    monkeypatch.setattr("shared.catalog.jobs.repeats.jobs_of", noted)
    assert await catalog.entries.exact("same", "default", visible_owners("default", "alice")) is None
    assert await catalog.entries.exact("same", "other", [OWNER]) is None
    assert await catalog.entries.exact(job.exact_key, "other", visible_owners("other", "")) is None
    assert not read
    await catalog.entries.exact(job.exact_key, "default", [OWNER])
    assert [row.id for row in read] == [job.id]
    with pytest.raises(sa.exc.ArgumentError):
        await catalog.entries.exact("same", "default", visible_owners("default", "bob"))


async def test_exact_repeats_may_be_of_some_weights_only(catalog: Catalog) -> None:
    other = replace(COMPAT, weights_hash="weights-b")
    await add(catalog, an_entry(id="e1", exact_key="same"))
    await add(catalog, replace(an_entry(id="e2", exact_key="same"), compat=other))
    for weights, expected in ((["weights-a"], "e1"), (["weights-b"], "e2"), (["weights-a", "weights-b"], "e2")):
        found = await catalog.entries.exact("same", "default", [OWNER], weights)
        assert found is not None
        assert found.id == expected
    assert await catalog.entries.exact("same", "default", [OWNER], ["weights-c"]) is None
    job = await finished(catalog)  # not yet cached
    assert await catalog.entries.exact(job.exact_key, "default", [OWNER], ["weights-b"]) is None
    assert await catalog.entries.exact(job.exact_key, "default", [OWNER], ["weights-a"]) is not None


async def test_a_picture_answers_repeats_before_its_job_is_cached(catalog: Catalog) -> None:
    job = await finished(catalog)
    found = await catalog.entries.exact(job.exact_key, "default", [OWNER])
    assert found is not None
    assert (found.id, found.states) == (job.id, ())
    assert (found.picture_key, found.picture_sha256) == (job.result.picture_key, job.result.picture_sha256)  # type: ignore[union-attr]
    assert await catalog.entries.exact(job.exact_key, "other", visible_owners("other", "")) is None
    assert await catalog.entries.exact("another", "default", [OWNER]) is None
    entry = entry_of(job)
    assert entry is not None
    assert await catalog.entries.add(replace(entry, states=an_entry(id=job.id, job_id=job.id).states), {})
    cached = await catalog.entries.exact(job.exact_key, "default", [OWNER])
    assert cached is not None
    assert (cached.id, len(cached.states)) == (job.id, 2)


async def test_a_job_that_is_to_stay_out_of_the_cache_answers_no_repeat(catalog: Catalog) -> None:
    wished = a_job()
    job, _ = await catalog.jobs.accept(
        replace(wished, request=replace(wished.request, cache=CacheMode.READ)), key_lifetime_s=60.0
    )
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id))
    assert await catalog.entries.exact(job.exact_key, "default", [OWNER]) is None


async def test_pages_are_newest_first(catalog: Catalog) -> None:
    for n in range(5):
        await add(catalog, an_entry(id=f"e{n}"))
    first, after = await catalog.entries.page(3)
    rest, end = await catalog.entries.page(3, after)
    assert [entry.id for entry in first + rest] == ["e4", "e3", "e2", "e1", "e0"]
    assert end == ""
    assert first[0] == await catalog.entries.get("e4")


async def test_items_are_what_the_index_must_hold(catalog: Catalog) -> None:
    for n in range(5):
        await add(catalog, an_entry(id=f"e{n}"), seed=n)
    await catalog.entries.drop_states([("e1", 5), ("e2", 5), ("e2", 10)])  # e1 has a hole, e2 has nothing left
    first = await catalog.entries.items(limit=2)
    rest = await catalog.entries.items(first[-1].entry_id, limit=10)
    assert [item.entry_id for item in first + rest] == ["e0", "e1", "e3", "e4"]
    item = rest[-1]
    assert (item.compat, item.owner, item.encoder_hash) == (str(COMPAT), OWNER, "clip-1")
    np.testing.assert_array_equal(item.vectors["whole"], a_vector(4))


async def test_items_of_named_entries(catalog: Catalog) -> None:
    for n in range(3):
        await add(catalog, an_entry(id=f"e{n}"), seed=n)
    await catalog.entries.drop_states([("e1", 5), ("e1", 10)])
    items = {item.entry_id: item for item in await catalog.entries.items_of(["e2", "e1", "e0", "nope"])}
    assert set(items) == {"e0", "e2"}
    np.testing.assert_array_equal(items["e2"].vectors["whole"], a_vector(2))
    assert await catalog.entries.items_of([]) == []


async def test_spent_entries_have_neither_states_nor_a_job(catalog: Catalog) -> None:
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    with_job, with_state, spent = an_entry(job_id=job.id), an_entry(), an_entry()
    for entry in (with_job, with_state, spent):
        await add(catalog, entry)
    for entry in (with_job, spent):
        await catalog.entries.drop_states([(entry.id, 5), (entry.id, 10)])
    assert await catalog.entries.spent() == [spent.id]
    await catalog.jobs.cancel(job.id)
    await catalog.jobs.expire(-1.0)
    assert set(await catalog.entries.spent()) == {spent.id, with_job.id}
    assert len(await catalog.entries.spent(limit=1)) == 1


async def test_entries_of_some_age_are_spent_with_states_and_job(catalog: Catalog) -> None:
    old, young = (replace(an_entry(), created_at=time.time() - age) for age in (100.0, 20.0))
    for entry in (old, young):
        await add(catalog, entry)
    assert await catalog.entries.spent() == []
    assert await catalog.entries.spent(max_age_s=60.0) == [old.id]
    assert await catalog.entries.spent(max_age_s=1.0) == sorted([old.id, young.id])


async def test_an_error_of_the_database_names_the_table_and_no_prompt(catalog: Catalog) -> None:
    entry = await add(catalog, an_entry())

    def again(connection: sa.Connection) -> None:
        connection.execute(sa.insert(entries), row_of(entry) | {"created_at": 0.0})

    with pytest.raises(AfterimageError) as raised:
        await catalog._database.write(again)
    said = "".join(traceback.format_exception(raised.value))
    assert "entries" in said
    assert entry.prompt not in said


async def test_an_index_is_rebuilt_from_the_catalog(catalog: Catalog) -> None:
    for n in range(3):
        await add(catalog, an_entry(id=f"e{n}"), seed=n)
    index = MemoryIndex()
    assert await rebuild_index(catalog, index) == 3
    (hit,) = await index.search("whole", a_vector(1), IndexFilter(str(COMPAT), (OWNER,), "clip-1"), 1)
    assert hit.entry_id == "e1"
    assert hit.similarity == pytest.approx(1.0, abs=1e-6)
    await index.close()


async def test_what_still_names_a_blob(catalog: Catalog) -> None:
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    await catalog.jobs.claim(job.id, "w1", LEASE_S)
    await catalog.jobs.checkpoint(job.id, 1, "checkpoints/c", 5)
    entry = await add(catalog, an_entry())
    assert await catalog.entries.referenced(["checkpoints/c", "nope", ""]) == {"checkpoints/c"}
    await catalog.jobs.finish(job.id, 1, a_result(job.id))
    named = {f"pictures/{job.id}/1.png", f"states/{job.id}/1/5", entry.picture_key, entry.states[0].key}
    assert await catalog.entries.referenced([*named, "checkpoints/c", "nope"]) == named
    await catalog.entries.drop_states([(entry.id, 5)])
    await catalog.jobs.expire(-1.0)
    assert await catalog.entries.referenced([*named]) == {entry.picture_key}
    assert await catalog.entries.referenced([f"none/{n}" for n in range(1200)]) == set()


async def test_profiles_by_kind_model_and_weights(catalog: Catalog) -> None:
    value = {"alpha": 0.9, "table": [[0.95, 25], [0.65, 5]]}
    await catalog.profiles.put("k_table", "tiny", "w1", {"old": True})
    await catalog.profiles.put("k_table", "tiny", "w1", value)
    assert await catalog.profiles.get("k_table", "tiny", "w1") == value
    assert await catalog.profiles.get("k_table", "tiny", "w2") is None
    assert await catalog.profiles.get("latency", "tiny", "w1") is None


async def test_two_replicas_add_the_same_job_once(catalog: Catalog, replica: Catalog) -> None:
    added = await asyncio.gather(
        *(each.entries.add(an_entry(job_id="j"), {"whole": b"\0" * 4}) for each in (catalog, replica) * 3)
    )
    assert sum(added) == 1
    states = await catalog.entries.states()
    assert len(states) == 2
    assert all(isinstance(state, State) for state in states)


async def test_a_start_reads_equal_values_of_states_and_items_once(catalog: Catalog) -> None:
    """A copy per row costs more than 100 MiB at 100,000 entries."""
    for seed in range(2):
        await add(catalog, an_entry(steps=(5, 10, 15)), seed)
    states, items = await catalog.entries.states(), await catalog.entries.items()
    assert [state.step for state in states] == [5, 10, 15] * 2
    assert len({id(state.entry_id) for state in states}) == 2
    assert len({id(state.codec) for state in states}) == len({id(state.bytes) for state in states}) == 1
    assert len({id(at) for state in states for at in (state.created_at, state.used_at)}) <= 2
    bare = await catalog.entries.states(bare=True)
    assert bare == [state.bare() for state in states]
    assert {(state.key, state.codec, state.sha256) for state in bare} == {("", "", "")}
    assert all(
        state == read for state, read in zip(states[:3], (await catalog.entries.page(9))[0][1].states, strict=True)
    )
    assert len({id(text) for item in items for text in (item.owner, item.compat, item.encoder_hash)}) == 3


async def test_items_are_the_same_page_by_page_and_by_id(catalog: Catalog) -> None:
    ids = sorted([(await add(catalog, an_entry(), seed)).id for seed in range(5)])
    pages = [await catalog.entries.items(after, 2) for after in ("", ids[1], ids[3])]
    assert [[item.entry_id for item in page] for page in pages] == [ids[:2], ids[2:4], ids[4:]]
    of = {item.entry_id: item for item in await catalog.entries.items_of(ids)}
    for item in (item for page in pages for item in page):
        same = of[item.entry_id]
        assert (item.compat, item.owner, item.encoder_hash) == (same.compat, same.owner, same.encoder_hash)
        assert item.compat == str(COMPAT)
        assert np.array_equal(item.vectors["whole"], same.vectors["whole"])
