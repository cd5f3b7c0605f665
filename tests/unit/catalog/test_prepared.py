"""Statements run by SQLite's driver alone give what SQLAlchemy gives; on PostgreSQL the contracts of jobs say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from shared.catalog.engines.prepared import Prepared

THINGS = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("id", sa.String(8), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=True),
)
t = THINGS.c
GET = Prepared(sa.select(THINGS).where(t.id == sa.bindparam("thing")))
MORE = sa.update(THINGS).where(t.id == sa.bindparam("thing"), t.kind == "a").values(count=t.count + sa.bindparam("by"))


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as open_one:
        THINGS.create(open_one)
        yield open_one
    engine.dispose()


def test_rows_are_what_sqlalchemy_reads(connection: sa.Connection) -> None:
    insert = Prepared(sa.insert(THINGS))
    for name in ("x", "y"):
        assert insert.first(connection, {"id": name, "kind": "a", "count": 1, "data": b"\0x"}) is None
    insert.first(connection, {"data": None, "id": "z", "kind": "b", "count": 1})  # in another order
    for name in ("x", "y", "z"):
        read = connection.execute(GET.statement, {"thing": name}).one()
        assert tuple(GET.first(connection, {"thing": name})) == tuple(read)
    row = GET.first(connection, {"thing": "x"})
    assert (row.id, row.kind, row.data) == ("x", "a", b"\0x")
    assert GET.first(connection, {"thing": "nobody"}) is None


def test_what_the_statement_holds_and_what_it_is_given(connection: sa.Connection) -> None:
    insert = Prepared(sa.insert(THINGS).values(kind="a", count=1))
    for name in ("x", "y"):
        insert.first(connection, {"id": name})
    more = Prepared(MORE.returning(THINGS))
    assert more.first(connection, {"thing": "x", "by": 4})[2] == 5
    assert more.first(connection, {"by": 4, "thing": "nobody"}) is None
    assert more.first(connection, {"thing": "x", "by": 2})[2] == 7
    connection.commit()  # nothing is left unread
    assert GET.first(connection, {"thing": "y"})[2] == 1
