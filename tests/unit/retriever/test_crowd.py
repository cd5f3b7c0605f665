"""Public entries of other tenants count only where enough tenants have similar ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.retriever.crowd import in_a_crowd
from shared.domain.types import Entry, Hit, Scope
from tests.unit.retriever.test_planning import entry

TENANTS = ("own", "a", "b", "c", "d")
found = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 100)), max_size=30)


def made(rows: list[tuple[str, int]]) -> tuple[list[Hit], dict[str, Entry]]:
    """Hits in descending order of similarity, as an index gives them, and their entries."""
    rows = sorted(rows, key=lambda row: -row[1])
    hits = [Hit(f"e{place}", similarity / 100) for place, (_, similarity) in enumerate(rows)]
    plain = entry("e")
    of = {hit.entry_id: replace(plain, id=hit.entry_id, tenant=tenant, scope=Scope.PUBLIC)
          for hit, (tenant, _) in zip(hits, rows, strict=True)}  # fmt: skip
    return hits, of


@given(found, st.integers(1, 5))
def test_enough_tenants_are_behind_every_hit_that_is_left(rows: list[tuple[str, int]], least: int) -> None:
    hits, entries = made(rows)
    kept = in_a_crowd(hits, entries, "own", least)
    assert kept == [hit for hit in hits if hit in kept]
    assert [hit for hit in kept if entries[hit.entry_id].tenant == "own"] == [
        hit for hit in hits if entries[hit.entry_id].tenant == "own"
    ]
    for hit in kept:
        others = {entries[one.entry_id].tenant for one in hits if one.similarity >= hit.similarity} - {"own"}
        assert entries[hit.entry_id].tenant == "own" or len(others) >= least
    if least == 1:
        assert kept == hits


@given(found, st.integers(2, 5))
def test_too_few_tenants_change_nothing_whatever_they_sent(rows: list[tuple[str, int]], least: int) -> None:
    few = {"own", *TENANTS[1:least]}
    hits, entries = made([row for row in rows if row[0] in few])
    own = [hit for hit in hits if entries[hit.entry_id].tenant == "own"]
    assert in_a_crowd(hits, entries, "own", least) == own


@given(found, st.integers(2, 5), st.sampled_from(TENANTS[1:]))
def test_no_tenant_makes_more_of_its_own_entries_count(rows: list[tuple[str, int]], least: int, planter: str) -> None:
    """However often one tenant repeats an entry, its own count as they do once."""
    hits, entries = made(rows)
    again = [Hit(f"{hit.entry_id}+", hit.similarity) for hit in hits if entries[hit.entry_id].tenant == planter]
    every = sorted([*hits, *again], key=lambda hit: -hit.similarity)
    of = {**entries, **{one.entry_id: entries[one.entry_id[:-1]] for one in again}}
    kept = {hit.entry_id for hit in in_a_crowd(every, of, "own", least)}
    assert {name for name in kept if not name.endswith("+")} == {
        hit.entry_id for hit in in_a_crowd(hits, entries, "own", least)
    }


def test_an_entry_that_is_gone_counts_for_nobody() -> None:
    hits, entries = made([("a", 90), ("b", 80), ("c", 70)])
    assert [hit.entry_id for hit in in_a_crowd(hits, entries, "own", 2)] == ["e1", "e2"]
    del entries["e0"]
    assert [hit.entry_id for hit in in_a_crowd(hits, entries, "own", 2)] == ["e2"]
