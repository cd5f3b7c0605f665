"""The order in which equal things are found, and that a search finds the best there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.types import IndexFilter, IndexItem, Vector
from shared.index import memory, unit, units
from shared.index.memory import MemoryIndex
from shared.index.nearest import Cosines, cosines, nearest

scores = st.lists(st.sampled_from([0.1, 0.5, 0.5000001, 0.9]), max_size=30)


@given(scores=scores, limit=st.integers(1, 12), seed=st.integers(0, 9))
def test_the_best_first_and_of_equal_ones_the_largest_name(scores: list[float], limit: int, seed: int) -> None:
    given = np.array(scores, np.float32)
    names = np.random.default_rng(seed).permutation(len(scores))
    found = nearest(given, limit, lambda places: names[places])
    assert found == sorted(range(len(scores)), key=lambda place: (-given[place], -names[place]))[:limit]


def test_rounding_never_brings_a_cosine_above_one() -> None:
    rows = np.random.default_rng(0).standard_normal((500, 7)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    own = np.array([cosines(rows[at : at + 1], rows[at])[0] for at in range(500)])
    assert own.max() == 1
    assert (np.vecdot(rows, rows) > 1).any()
    assert cosines(rows, rows[3])[3] == own[3]  # whatever other rows are compared


async def test_of_pictures_for_the_same_words_the_index_finds_the_youngest() -> None:
    index, row = MemoryIndex(), np.array([0.6, 0.8], np.float32)
    for name in ("b", "a", "d", "c"):
        await index.add([IndexItem(name, {"whole": row})])
    await index.remove(["d"])
    found = [hit.entry_id for hit in await index.search("whole", row, IndexFilter(), 2)]
    assert found == ["c", "b"]


async def test_rows_of_one_batch_equal_rows_added_alone() -> None:
    """A rebuilt index must order equal prompts as the index that serving filled."""
    rows = np.random.default_rng(1).standard_normal((50, 33)).astype(np.float32)
    rows[7] = 0
    batch, alone = MemoryIndex(), MemoryIndex()
    items = [IndexItem(f"{number:02}", {"whole": row}) for number, row in enumerate(rows)]
    await batch.add(items)
    for item in items:
        await alone.add([item])
    query = unit(rows[3], "query")
    found = await batch.search("whole", query, IndexFilter(), 50)
    assert found == await alone.search("whole", query, IndexFilter(), 50)
    assert np.array_equal(units(rows, "rows"), np.stack([unit(row, "row") for row in rows]))
    assert not unit(rows[7], "row").any()


async def test_a_half_built_graph_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows outside the graph are compared in place, in another order than that of the matrix."""
    rows = np.random.default_rng(2).standard_normal((50, 16)).astype(np.float32)
    items = [IndexItem(f"{number:02}", {"whole": row}) for number, row in enumerate(rows)]
    half, exact = MemoryIndex(exact_up_to=4), MemoryIndex()
    await half.add(items[:30])
    await half.settled()
    monkeypatch.setattr(memory, "SLICE_S", -1.0)  # the graph grows no further
    await half.add(items[30:])
    await exact.add(items)
    for row in rows:
        query = unit(row, "query")
        found = await half.search("whole", query, IndexFilter(), 5)
        assert found == await exact.search("whole", query, IndexFilter(), 5)
    await half.close()


async def test_a_graph_that_is_held_back_grows_later_and_finds_the_same() -> None:
    rows = np.random.default_rng(3).standard_normal((50, 16)).astype(np.float32)
    index, space = MemoryIndex(exact_up_to=4), ("whole", 16)
    index.hold_back()
    await index.add([IndexItem(f"{number:02}", {"whole": row}) for number, row in enumerate(rows)])
    await index.settled()
    assert len(index._spaces[space]._waiting) == 50
    before = await index.search("whole", unit(rows[3], "query"), IndexFilter(), 5)
    index.let_grow()
    await index.settled()
    assert not index._spaces[space]._waiting
    assert await index.search("whole", unit(rows[3], "query"), IndexFilter(), 5) == before
    await index.close()


def test_few_rows_outside_the_graph_are_copied_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying 90,000 rows for each search took 50 ms while a graph of 100,000 was built."""
    compared = list[int]()

    def counted(rows: Cosines, query: Vector) -> Cosines:
        compared.append(len(rows))
        return cosines(rows, query)

    monkeypatch.setattr(memory, "cosines", counted)
    space = memory._Space(8, exact_up_to=1000)
    rows = np.eye(8, dtype=np.float32)[np.arange(100) % 8]
    space.add([IndexItem(str(number), {}, owner=str(number < 10)) for number in range(100)], rows)
    for owners in (("True",), ("False",), ()):
        space.search(rows[3], IndexFilter(owners=owners), 2)
    assert compared == [10, 100, 100]
