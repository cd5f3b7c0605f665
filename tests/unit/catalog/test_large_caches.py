"""What keeps the catalog fast with hundreds of thousands of states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from shared.catalog import open_catalog
from shared.catalog.entries.entries import _referenced
from shared.catalog.tables import states
from shared.domain.types import State
from tests.contracts.nouns import an_entry


def test_rows_of_states_are_read_by_position() -> None:
    assert [column.name for column in states.columns] == [field.name for field in dataclasses.fields(State)]


async def test_a_page_of_cached_blobs_takes_the_collector_one_query(tmp_path: Path) -> None:
    url = f"{tmp_path / 'catalog.db'}"
    catalog = await open_catalog(f"sqlite+aiosqlite:///{url}")
    entry = an_entry(steps=(5, 10))
    await catalog.entries.add(entry, {})
    await catalog.close()
    engine, asked = sa.create_engine(f"sqlite:///{url}"), list[str]()

    def count(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", count)
    keys = [state.key for state in entry.states]
    with engine.connect() as connection:
        assert _referenced(connection, keys) == set(keys)
        assert len(asked) == 1
        assert _referenced(connection, [*keys, entry.picture_key, "states/none"]) == {*keys, entry.picture_key}
    engine.dispose()
