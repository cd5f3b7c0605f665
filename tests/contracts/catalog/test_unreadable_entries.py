"""Entries, vectors and profiles that only another version can read are left out and left alone."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.tables import METADATA
from shared.domain.errors import UnreadableRowError
from shared.domain.types import Scope
from shared.index.memory import MemoryIndex
from shared.index.rebuild import rebuild_index, reconcile
from tests.contracts.catalog.conftest import change, counted, look
from tests.contracts.nouns import OWNER, a_vector, an_entry

pytestmark = pytest.mark.usefixtures("nothing_is_reported_yet")


async def test_entries_of_another_version_are_left_out_and_left_alone(catalog: Catalog) -> None:
    before = counted("entries")
    names = [f"entry{n}" for n in range(6)]
    for name in names:
        vectors = {"whole": a_vector(1).tobytes()}
        assert await catalog.entries.add(an_entry(id=name, exact_key=name, job_id=f"of-{name}"), vectors)
    for name in (strange := ["entry1", "entry3", "entry4", "entry5"]):
        await change(catalog, name, "entries", scope="friends")
    rows = {name: await look(catalog, name, "entries") for name in strange}
    read, after = [], ""
    while True:
        page, after = await catalog.entries.page(2, after)
        assert page or not after
        read += [entry.id for entry in page]
        if not after:
            break
    assert read == ["entry2", "entry0"]
    assert (await catalog.entries.by_ids(names)).keys() == {"entry0", "entry2"}
    assert {state.entry_id for state in await catalog.entries.states()} == {"entry0", "entry2"}  # nothing to evict
    assert await catalog.entries.exact("entry1", "default", [OWNER]) is None
    assert await catalog.entries.drop_entries(names[:2]) != []
    with pytest.raises(UnreadableRowError, match=r"entry 'entry1' .*friends"):
        await catalog.entries.get("entry1")
    assert counted("entries") == before + len(strange)
    assert {name: await look(catalog, name, "entries") for name in strange} == rows
    assert await catalog.entries.referenced(["states/of-entry1/1/5"]) == {"states/of-entry1/1/5"}
    await change(catalog, "entry1", "entries", scope=Scope.TENANT.value)
    assert len((await catalog.entries.get("entry1")).states) == 2


async def test_entries_that_lost_everything_are_not_dropped_and_hide_no_others(catalog: Catalog) -> None:
    for name in ("a", "b"):
        await catalog.entries.add(an_entry(id=name, steps=(), exact_key=name), {})
        await catalog.entries.add(an_entry(id=f"{name}-picture", steps=(0,), exact_key=f"{name}2"), {})
    await change(catalog, "a", "entries", scope="friends")
    await change(catalog, "a-picture", "entries", scope="friends")
    assert await catalog.entries.spent(1) == ["b"]
    assert [entry.id for entry in await catalog.entries.unembedded(1)] == ["b-picture"]


async def test_the_index_is_rebuilt_past_a_vector_of_another_version(catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        await catalog.entries.add(an_entry(id=name, exact_key=name), {"whole": a_vector(1).tobytes()})
    of = METADATA.tables["vectors"]

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.update(of).where(of.c.entry_id == "a").values(data=b"\x01" * 9))

    await catalog._database.write(write)
    before, index = counted("vectors"), MemoryIndex()
    assert await rebuild_index(catalog, index) == 3
    await reconcile(catalog, index, ["a", "b", "c"])
    assert counted("vectors") == before + 1
    assert [item.entry_id for item in await catalog.entries.items() if item.vectors] == ["b", "c"]


async def test_a_profile_that_is_no_json_is_none(catalog: Catalog) -> None:
    await catalog.profiles.put("latency", "tiny", "w", {"step_s": 1})
    before = counted("profiles")
    if catalog.process_local:  # PostgreSQL's column takes JSON alone

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.text("UPDATE profiles SET value = 'cbor:…'"))

        await catalog._database.write(write)
        assert await catalog.profiles.get("latency", "tiny", "w") is None
        assert counted("profiles") == before + 1
    else:
        assert await catalog.profiles.get("latency", "tiny", "w") == {"step_s": 1}
