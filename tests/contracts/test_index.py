"""What every vector index does for the services."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.errors import InvalidRequestError
from shared.domain.types import Hit, IndexFilter, IndexItem, Vector
from shared.index import Index
from shared.index.memory import MemoryIndex
from tests.contracts.nouns import a_vector

ALL = IndexFilter()
DIM = 8


def item(entry_id: str, vector: Vector, compat: str = "c", owner: str = "public", encoder: str = "h") -> IndexItem:
    return IndexItem(entry_id, {"whole": vector}, compat=compat, owner=owner, encoder_hash=encoder)


def brute(items: dict[str, IndexItem], query: Vector, where: IndexFilter, limit: int) -> list[Hit]:
    """The definition: every cosine, in float64."""
    hits = [
        Hit(entry.entry_id, float(entry.vectors["whole"].astype(np.float64) @ query.astype(np.float64)))
        for entry in items.values()
        if where.compat in ("", entry.compat)
        and (not where.owners or entry.owner in where.owners)
        and where.encoder_hash in ("", entry.encoder_hash)
    ]
    return sorted(hits, key=lambda hit: -hit.similarity)[:limit]


def assert_same(found: list[Hit], expected: list[Hit]) -> None:
    """The same similarities, and the same entries where they do not tie."""
    assert [hit.similarity for hit in found] == pytest.approx([hit.similarity for hit in expected], abs=1e-5)
    known = {hit.entry_id: hit.similarity for hit in expected}
    for hit in found:
        tied = any(abs(hit.similarity - other.similarity) < 1e-5 for other in expected)
        assert hit.entry_id in known or tied
    assert len({hit.entry_id for hit in found}) == len(found)


async def test_nothing_is_found_in_an_empty_index(index: Index) -> None:
    assert await index.search("whole", a_vector(1), ALL, 5) == []
    assert await index.count() == 0
    assert await index.missing(["a"]) == {"a"}


async def test_the_nearest_come_first_by_cosine(index: Index) -> None:
    query = a_vector(0)
    entries = {str(n): item(str(n), a_vector(n)) for n in range(1, 10)}
    await index.add(list(entries.values()))
    assert await index.count() == 9
    found = await index.search("whole", query, ALL, 3)
    assert_same(found, brute(entries, query, ALL, 3))
    assert len(found) == 3


async def test_cosine_does_not_depend_on_length(index: Index) -> None:
    await index.add([item("a", a_vector(1) * 3)])
    (hit,) = await index.search("whole", a_vector(1) * 0.2, ALL, 1)
    assert hit.similarity == pytest.approx(1.0, abs=1e-6)  # in float32: f16 would be 4e-5 off


async def test_adding_again_replaces(index: Index) -> None:
    await index.add([item("a", a_vector(1), owner="tenant:x")])
    await index.add([item("a", -a_vector(1), owner="tenant:y")])
    assert await index.count() == 1
    (hit,) = await index.search("whole", a_vector(1), ALL, 5)
    assert hit.similarity == pytest.approx(-1.0, abs=1e-6)
    assert await index.search("whole", a_vector(1), IndexFilter(owners=("tenant:x",)), 5) == []


async def test_of_an_entry_twice_in_a_batch_the_last_counts(index: Index) -> None:
    await index.add([item("a", a_vector(1)), item("b", a_vector(2)), item("a", -a_vector(1))])
    assert await index.count() == 2
    (hit,) = await index.search("whole", -a_vector(1), ALL, 1)
    assert hit.entry_id == "a"
    assert hit.similarity == pytest.approx(1.0, abs=1e-6)


async def test_removed_entries_are_not_found_and_unknown_ones_are_fine(index: Index) -> None:
    await index.add([item("a", a_vector(1)), item("b", a_vector(2))])
    await index.remove(["a", "never-there"])
    assert [hit.entry_id for hit in await index.search("whole", a_vector(1), ALL, 5)] == ["b"]
    assert await index.count() == 1


async def test_named_vectors_are_searched_apart(index: Index) -> None:
    both = IndexItem("a", {"whole": a_vector(1), "image": a_vector(2)}, "c", "public", "h")
    await index.add([both, item("b", a_vector(3))])
    assert [hit.entry_id for hit in await index.search("image", a_vector(2), ALL, 5)] == ["a"]
    assert {hit.entry_id for hit in await index.search("whole", a_vector(2), ALL, 5)} == {"a", "b"}
    await index.add([IndexItem("a", {"whole": a_vector(1)}, "c", "public", "h")])
    assert await index.search("image", a_vector(2), ALL, 5) == []  # the new item has no such vector
    assert await index.search("object", a_vector(2), ALL, 5) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (IndexFilter(compat="c1"), {"a", "b"}),
        (IndexFilter(owners=("tenant:x", "public")), {"a", "c"}),
        (IndexFilter(encoder_hash="h2"), {"c"}),
        (IndexFilter("c1", ("tenant:y",), "h1"), {"b"}),
        (IndexFilter(compat="never seen"), set()),
        (IndexFilter(owners=("never seen",)), set()),
    ],
)
async def test_filters(index: Index, where: IndexFilter, expected: set[str]) -> None:
    await index.add(
        [
            item("a", a_vector(1), "c1", "tenant:x", "h1"),
            item("b", a_vector(2), "c1", "tenant:y", "h1"),
            item("c", a_vector(3), "c2", "public", "h2"),
        ]
    )
    assert {hit.entry_id for hit in await index.search("whole", a_vector(1), where, 5)} == expected


async def test_a_rare_owner_is_found_behind_many_nearer_vectors(index: Index) -> None:
    query = a_vector(0)
    near = [item(f"near{n}", query + 0.01 * a_vector(n), owner="tenant:big") for n in range(1, 400)]
    await index.add(near)
    await index.add([item("mine", -query, owner="tenant:small")])
    (hit,) = await index.search("whole", query, IndexFilter(owners=("tenant:small",)), 1)
    assert hit.entry_id == "mine"
    assert hit.similarity == pytest.approx(-1.0, abs=1e-6)


async def test_a_vector_is_found_as_soon_as_it_was_added(index: Index) -> None:
    for n in range(60):
        await index.add([item(str(n), a_vector(n))])
        (hit,) = await index.search("whole", a_vector(n), ALL, 1)
        assert hit.entry_id == str(n)
        assert hit.similarity == pytest.approx(1.0, abs=1e-6)


async def test_searches_while_adding_and_removing(index: Index) -> None:
    await index.add([item("stays", a_vector(0))])

    async def churn(first: int) -> None:
        for n in range(first, first + 50):
            await index.add([item(str(n), a_vector(n + 1))])
            await asyncio.sleep(0)
            await index.remove([str(n)])

    async def look() -> None:
        for _ in range(100):
            (hit,) = await index.search("whole", a_vector(0), ALL, 1)
            assert hit.entry_id == "stays"
            await asyncio.sleep(0)

    await asyncio.gather(churn(0), churn(1000), look())
    assert await index.count() == 1


async def test_an_entry_without_vectors_is_none(index: Index) -> None:
    await index.add([item("a", a_vector(1)), IndexItem("b", {}, "c", "public", "h")])
    await index.add([IndexItem("a", {}, "c", "public", "h")])
    assert await index.search("whole", a_vector(1), ALL, 5) == []
    assert await index.count() == 0


async def test_vectors_of_another_length_live_apart(index: Index) -> None:
    """Another encoder: its vectors neither fit the old ones nor keep them from being found."""
    await index.add([item("a", a_vector(1))])
    await index.add([item("b", a_vector(1, dim=12))])
    assert [hit.entry_id for hit in await index.search("whole", a_vector(2), ALL, 5)] == ["a"]
    assert [hit.entry_id for hit in await index.search("whole", a_vector(2, dim=12), ALL, 5)] == ["b"]
    assert await index.search("whole", a_vector(2, dim=5), ALL, 5) == []
    assert await index.count() == 2
    await index.add([item("a", a_vector(3, dim=12))])
    assert await index.search("whole", a_vector(1), ALL, 5) == []


async def test_one_batch_may_name_an_entry_twice(index: Index) -> None:
    await index.add([item("a", a_vector(1)), item("a", a_vector(2))])
    (hit,) = await index.search("whole", a_vector(2), ALL, 5)
    assert hit.similarity == pytest.approx(1.0, abs=1e-6)


async def test_every_id_is_listed_once(index: Index) -> None:
    assert [page async for page in index.ids()] == []
    many = [f"entry-{n:04}" for n in range(1100)]
    await index.add([item(entry_id, a_vector(n)) for n, entry_id in enumerate(many)])
    await index.remove(many[:50])
    listed = [entry_id async for page in index.ids() for entry_id in page]
    assert sorted(listed) == many[50:]
    assert await index.count() == len(listed)
    assert await index.missing([*many[:60], "never"]) == {*many[:50], "never"}
    assert await index.missing([]) == set()


async def test_the_nearest_of_two_thousand_is_the_exact_one(index: Index) -> None:
    """512 dimensions in clusters, as prompts are: recall@1 against the definition, with and without filters."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(40, 512))
    rows = centres[rng.integers(40, size=2000)] + rng.normal(size=(2000, 512))
    entries = {
        str(n): item(str(n), row.astype(np.float32), f"c{n % 3}", f"tenant:{n % 7}") for n, row in enumerate(rows)
    }
    await index.add(list(entries.values()))
    unit = {
        key: IndexItem(key, {"whole": one.vectors["whole"] / np.linalg.norm(one.vectors["whole"])}, one.compat,
                       one.owner, one.encoder_hash) for key, one in entries.items()
    }  # fmt: skip
    for where in (ALL, IndexFilter("c1", ("tenant:1", "tenant:2"), "h")):
        wrong = 0
        for _ in range(40):
            query = rows[rng.integers(2000)] + 0.7 * rng.normal(size=512)
            query = (query / np.linalg.norm(query)).astype(np.float32)
            (hit,) = await index.search("whole", query, where, 1)
            (best,) = brute(unit, query, where, 1)
            assert hit.similarity == pytest.approx(
                float(unit[hit.entry_id].vectors["whole"].astype(np.float64) @ query), abs=1e-6
            )
            wrong += hit.entry_id != best.entry_id
        assert wrong == 0


@pytest.mark.parametrize("bad", [[np.nan] * DIM, [np.inf] + [0.0] * (DIM - 1)])
async def test_vectors_must_be_numbers(index: Index, bad: list[float]) -> None:
    with pytest.raises(InvalidRequestError, match="finite"):
        await index.add([item("a", np.array(bad, np.float32))])
    with pytest.raises(InvalidRequestError, match="vector"):
        await index.search("whole", np.array(bad, np.float32), ALL, 1)
    assert await index.count() == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(0, 15), st.integers(0, 40), st.sampled_from("ab"), st.sampled_from("xyz")
        ),
        st.tuples(st.just("remove"), st.integers(0, 15)),
    ),
    max_size=60,
)


@settings(max_examples=40)
@given(steps=STEPS, limit=st.integers(1, 6), owners=st.sampled_from([(), ("x",), ("x", "y")]))
async def test_whatever_was_added_and_removed_the_answer_is_the_brute_force_one(
    index: Index, steps: list[tuple[str, int, int, str, str] | tuple[str, int]], limit: int, owners: tuple[str, ...]
) -> None:
    await index.remove([str(n) for n in range(16)])
    model: dict[str, IndexItem] = {}
    for step in steps:
        entry_id = str(step[1])
        if len(step) == 2:
            await index.remove([entry_id])
            model.pop(entry_id, None)
        else:
            model[entry_id] = item(entry_id, a_vector(step[2]), step[3], step[4])
            await index.add([model[entry_id]])
    for query in (a_vector(100), a_vector(3)):
        for where in (IndexFilter(owners=owners), IndexFilter("a", owners, "h")):
            assert_same(await index.search("whole", query, where, limit), brute(model, query, where, limit))
    assert await index.count() == len(model)


async def test_the_memory_index_forgets_an_owner_with_its_last_vector() -> None:
    """Clients choose the names in private owners: each new one stayed, also after its erasure."""
    index, owner = MemoryIndex(), "private:acme:alice"
    await index.add([item("a", a_vector(1), owner=owner), item("b", a_vector(2), owner=owner)])
    await index.remove(["a"])
    (found,) = await index.search("whole", a_vector(1), IndexFilter(owners=(owner,)), 5)
    assert found.entry_id == "b"
    await index.remove(["b"])
    assert "alice" not in repr([vars(codes) for space in index._spaces.values() for codes in space._codes])
    await index.add([item("c", a_vector(1), owner="tenant:x"), item("d", a_vector(2), owner=owner)])
    (found,) = await index.search("whole", a_vector(1), IndexFilter(owners=(owner,)), 5)
    assert found.entry_id == "d"
