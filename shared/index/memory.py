"""A vector index in memory: exact up to a few thousand vectors; above, an f16 graph with float32 re-scoring.

Measured on 2 busy shared cores with 512 dimensions, clustered vectors and 5 nearest, as p50 and recall@1. 1,000
vectors: 0.07 ms; 4,000: 0.27 ms (both exact). 10,000: 0.5 ms, 1.0. 100,000: 1.3 ms, .99. With a filter that leaves 1 %
of 100,000: 2.0 ms, 1.0 (exact). The graph of 100,000 is built in slices while serving, in about 70 s; until then
searches are exact and slower.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.domain.types import Hit, IndexFilter, IndexItem, Vector
from shared.index import one_row, unit, units
from shared.index.nearest import cosines, nearest

EXACT_UP_TO = 4096
"""Vectors of one space up to which every search is exact; with more, the graph is used."""
EXPANSION_ADD = 64
"""Half of the library's default: adds are twice as fast, and recall on 20,000 clustered vectors is 1.0 with both."""
SLICE_S = 0.001
"""Seconds for which the event loop is blocked at a time while vectors move into the graph."""

COPIED = 5
"""Cost of copying a row, in comparisons of a row in place (measured at 100,000 rows)."""

Slots = npt.NDArray[np.intp]


class _Codes:
    """Integers for strings, so that filters compare integer arrays. A string is forgotten with its last row: owners
    contain names that clients choose."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._rows: Counter[int] = Counter()
        self._next = 0

    def take(self, text: str) -> int:
        """Return the code for one more row."""
        if (code := self._codes.get(text)) is None:
            code = self._codes[text] = self._next
            self._texts[code] = text
            self._next += 1
        self._rows[code] += 1
        return code

    def drop(self, code: int) -> None:
        """Count one row less."""
        self._rows[code] -= 1
        if not self._rows[code]:
            del self._rows[code], self._codes[self._texts.pop(code)]

    def known(self, texts: Sequence[str]) -> list[int]:
        return [self._codes[text] for text in texts if text in self._codes]


class _Space:
    """The vectors of one name and length: rows of a matrix and, above EXACT_UP_TO, most of them also in a graph.

    A row that is not (yet) in the graph is compared exactly, so a vector can be found as soon as it is added.
    """

    def __init__(self, dim: int, exact_up_to: int) -> None:
        self.dim = dim
        self._exact_up_to = exact_up_to
        self.slots: dict[str, int] = {}
        self._ids: list[str] = []
        self._free: list[int] = []
        self._rows = np.zeros((64, dim), np.float32)
        self._compat = np.full(64, -1, np.int32)  # -1: an empty row
        self._owner = np.zeros(64, np.int32)
        self._encoder = np.zeros(64, np.int32)
        self._codes = (_Codes(), _Codes(), _Codes())
        self._graph: Any = None
        self._graph_key = np.full(64, -1, np.int64)  # -1: not in the graph
        self._slot_of_key: dict[int, int] = {}
        self._next_key = 0  # never reused: the graph keeps tombstones
        self._waiting: dict[int, None] = {}  # slots outside the graph, in order of arrival

    def _grow_arrays(self) -> None:
        for name in ("_rows", "_compat", "_owner", "_encoder", "_graph_key"):
            before = getattr(self, name)
            # the new half of a calloc'ed array takes no memory until rows are written to it
            grown = np.zeros((2 * len(before), *before.shape[1:]), before.dtype)
            grown[: len(before)] = before
            if name in ("_compat", "_graph_key"):
                grown[len(before) :] = -1
            setattr(self, name, grown)

    def add(self, items: Sequence[IndexItem], vectors: npt.NDArray[np.float32]) -> None:
        """Add items that are not here, with their unit vectors, shape (items, dim)."""
        slots = np.array([self._take_slot(item.entry_id) for item in items], np.intp)
        self._rows[slots] = vectors
        compat, owner, encoder = self._codes
        self._compat[slots] = [compat.take(item.compat) for item in items]
        self._owner[slots] = [owner.take(item.owner) for item in items]
        self._encoder[slots] = [encoder.take(item.encoder_hash) for item in items]
        self._waiting.update(dict.fromkeys(slots.tolist()))

    def _take_slot(self, entry_id: str) -> int:
        if self._free:
            slot = self._free.pop()
            self._ids[slot] = entry_id
        else:
            slot = len(self._ids)
            self._ids.append(entry_id)
            if slot == len(self._rows):
                self._grow_arrays()
        self.slots[entry_id] = slot
        return slot

    def remove(self, entry_id: str) -> None:
        slot = self.slots.pop(entry_id, None)
        if slot is None:
            return
        for codes, column in zip(self._codes, (self._compat, self._owner, self._encoder), strict=True):
            codes.drop(int(column[slot]))
        self._compat[slot] = -1
        self._waiting.pop(slot, None)
        key = int(self._graph_key[slot])
        if key >= 0:
            self._graph.remove(key)
            del self._slot_of_key[key]
            self._graph_key[slot] = -1
        self._free.append(slot)

    def extend_graph(self) -> bool:
        """Move waiting rows into the graph for about SLICE_S; return whether more are waiting."""
        if self._graph is None:
            if len(self.slots) <= self._exact_up_to:
                return False
            from usearch.index import Index as Graph

            self._graph = Graph(ndim=self.dim, metric="ip", dtype="f16", expansion_add=EXPANSION_ADD)
        until = time.perf_counter() + SLICE_S
        while self._waiting and time.perf_counter() < until:
            slot = next(iter(self._waiting))
            del self._waiting[slot]
            key, self._next_key = self._next_key, self._next_key + 1
            self._graph.add(key, self._rows[slot], threads=1)
            self._graph_key[slot] = key
            self._slot_of_key[key] = slot
        return bool(self._waiting)

    def _matching(self, slots: Slots | slice, where: IndexFilter) -> npt.NDArray[np.bool_]:
        compat, owner, encoder = self._codes
        found = self._compat[slots] >= 0
        if where.compat:
            found &= _among(self._compat[slots], compat.known([where.compat]))
        if where.owners:
            found &= _among(self._owner[slots], owner.known(where.owners))
        if where.encoder_hash:
            found &= _among(self._encoder[slots], encoder.known([where.encoder_hash]))
        return found

    def _best(self, slots: Slots, query: Vector, limit: int) -> list[tuple[int, float]]:
        """Return the `limit` best rows by cosine in float32, best first; among equals, the youngest entry first."""
        if len(slots) == 0:
            return []
        if COPIED * len(slots) > len(self._ids):  # a copy of these rows costs more than comparing every row
            scores = cosines(self._rows[: len(self._ids)], query)[slots]
        else:
            scores = cosines(self._rows[slots], query)
        order = nearest(scores, limit, lambda places: np.array([self._ids[slot] for slot in slots[places].tolist()]))
        return [(int(slots[place]), float(scores[place])) for place in order]

    def search(self, query: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        found = self._through_graph(query, where, limit, 4 * limit + 16) if self._slot_of_key else None
        if found is None:
            matching = np.flatnonzero(self._matching(slice(len(self._ids)), where))
            if self._slot_of_key and len(matching) > self._exact_up_to:
                found = self._through_graph(query, where, limit, 32 * limit + 128)
            if found is None:
                found = self._best(matching, query, limit)
        return [Hit(self._ids[slot], max(-1.0, score)) for slot, score in found]

    def _through_graph(
        self, query: Vector, where: IndexFilter, limit: int, fetch: int
    ) -> list[tuple[int, float]] | None:
        """Return the best rows of the `fetch` candidates from the graph; None if the filter left too few of them."""
        # the graph compares in f16: fetch more candidates than requested, decide in float32
        keys = self._graph.search(query, min(fetch, len(self._slot_of_key)), threads=1).keys
        slots = np.fromiter((self._slot_of_key[int(key)] for key in keys), np.intp, len(keys))
        slots = slots[self._matching(slots, where)]
        if len(slots) < limit:
            return None
        if self._waiting:
            fresh = np.fromiter(self._waiting, np.intp, len(self._waiting))
            slots = np.concatenate([slots, fresh[self._matching(fresh, where)]])
        return self._best(slots, query, limit)


def _among(column: npt.NDArray[np.int32], codes: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with one of these codes. np.isin takes several times as long for one to three codes."""
    found = np.zeros(len(column), np.bool_)
    for code in codes:
        found |= column == code
    return found


class MemoryIndex:
    """Belongs to one event loop, in which every operation except the graph's growth is one uninterrupted step."""

    process_local = True

    def __init__(self, *, exact_up_to: int = EXACT_UP_TO) -> None:
        self._exact_up_to = exact_up_to
        self._held_back = False
        self._spaces: dict[tuple[str, int], _Space] = {}
        self._growing: asyncio.Task[None] | None = None

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        query = unit(vector, "vector")
        # another encoder may produce vectors of another length, which have a space of their own
        space = self._spaces.get((name, len(query)))
        return space.search(query, where, limit) if space is not None and limit > 0 else []

    async def add(self, items: Sequence[IndexItem]) -> None:
        named: dict[tuple[str, int], tuple[list[IndexItem], list[Vector]]] = {}
        for item in {item.entry_id: item for item in items}.values():
            for name, vector in item.vectors.items():
                row = one_row(vector, f"vectors[{name}]")
                of_space = named.setdefault((name, len(row)), ([], []))
                of_space[0].append(item)
                of_space[1].append(row)
        checked = {key: (its, units(np.stack(rows), f"vectors[{key[0]}]")) for key, (its, rows) in named.items()}
        for item in items:
            self._remove(item.entry_id)
        for key, (its, rows) in checked.items():
            if key not in self._spaces:
                self._spaces[key] = _Space(key[1], self._exact_up_to)
            self._spaces[key].add(its, rows)
        if not self._held_back:
            self._start_growing()

    def hold_back(self) -> None:
        """Leave the graph as it is until `let_grow`: its growth takes half the processor time of a start."""
        self._held_back = True

    def let_grow(self) -> None:
        self._held_back = False
        self._start_growing()

    def _start_growing(self) -> None:
        if self._growing is None and any(space.extend_graph() for space in self._spaces.values()):
            self._growing = asyncio.create_task(self._grow(), name="index graph")

    async def _grow(self) -> None:
        try:
            while True:
                if not any(space.extend_graph() for space in list(self._spaces.values())):
                    return
                await asyncio.sleep(0)  # lets other tasks run between slices
        finally:
            self._growing = None

    def _remove(self, entry_id: str) -> None:
        for space in self._spaces.values():
            space.remove(entry_id)

    async def remove(self, entry_ids: Sequence[str]) -> None:
        for entry_id in entry_ids:
            self._remove(entry_id)

    def _entry_ids(self) -> set[str]:
        return set().union(*(space.slots for space in self._spaces.values()))

    async def count(self) -> int:
        return len(self._entry_ids())

    async def ids(self) -> AsyncIterator[list[str]]:
        if known := self._entry_ids():
            yield sorted(known)

    async def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return set(entry_ids) - self._entry_ids()

    async def settled(self) -> None:
        """Wait until the graph has every vector that belongs there."""
        while self._growing is not None:
            await asyncio.wait([self._growing])

    async def close(self) -> None:
        if self._growing is not None:
            self._growing.cancel()
            with suppress(asyncio.CancelledError):
                await self._growing
        self._spaces.clear()
