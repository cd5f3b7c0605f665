"""Finds the entries that searches really find: a killed server keeps objects that its graphs have lost.

A killed server keeps every object that it confirmed, but loses the graph positions of the objects from its last second
(measured with 1.35.2). Another add of such an object changes nothing unless the object is removed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from weaviate.classes.query import Filter

from shared.index.weaviate.collection import EntryCollection, uuid_of


async def findable(collection: EntryCollection, entry_ids: Sequence[str]) -> set[str]:
    """Return the given entries (at most 1,000) that searches find in every space for which they have a vector."""
    known = await collection.spaces()
    if not known or not entry_ids:
        return set()
    them = Filter.by_id().contains_any([uuid_of(entry_id) for entry_id in entry_ids])
    fetch = partial(collection.objects.query.fetch_objects, filters=them, limit=len(entry_ids))
    stored = await collection.opened(partial(fetch, return_properties=["entry_id", "spaces"]))
    if stored is None:
        return set()
    spaces_of: dict[str, Any] = {str(each.properties["entry_id"]): each.properties["spaces"] for each in stored.objects}
    found = set(spaces_of)
    for space in {space for spaces in spaces_of.values() for space in spaces or ()}:
        expected = {entry_id for entry_id, spaces in spaces_of.items() if space in (spaces or ())}
        found -= expected - (await _in_graph(collection, space, expected) if space in known else set())
    return found


async def _in_graph(collection: EntryCollection, space: str, entry_ids: set[str]) -> set[str]:
    anywhere = [1.0] + [0.0] * (int(space.rpartition("_")[2]) - 1)
    near = partial(
        collection.objects.query.near_vector,
        anywhere,
        target_vector=space,
        filters=Filter.by_id().contains_any([uuid_of(entry_id) for entry_id in entry_ids]),  # few: exact
        limit=len(entry_ids),
        return_properties=["entry_id"],
    )
    found = await collection.opened(near, space)
    return {str(each.properties["entry_id"]) for each in found.objects} if found else set()
