"""What came into the index a moment ago is looked for there once more, whoever was killed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer.recent_entries import SETTLED_S
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import house
from tests.unit.cached import request


async def test_what_the_index_forgot_when_it_was_killed_is_found_again_soon(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory index that passes for a server, from which entries vanish behind the maintainer's back."""
    clock = ManualClock()
    async with house(small, clock) as home:
        index = home.backends.index
        monkeypatch.setattr(index, "process_local", False)
        first, second = await home.finish(request("a"), 1), await home.finish(request("b"), 2)
        await index.remove([first])
        await home.service._tidy()
        assert await home.found(1) == []  # the server may forget what is as new as this
        clock.advance(SETTLED_S)
        asked: list[Sequence[str]] = []
        missing = index.missing

        async def noted(ids: Sequence[str]) -> set[str]:
            asked.append(ids)
            return await missing(ids)

        monkeypatch.setattr(index, "missing", noted)
        await home.service._tidy()
        assert (await home.found(1), await home.found(2)) == ([first], [second])
        assert asked[0] == sorted([first, second])
        asked.clear()
        clock.advance(SETTLED_S)
        await home.service._tidy()
        assert asked == [[first]]  # what was found once stays; what was brought again is looked for again
        asked.clear()
        clock.advance(SETTLED_S)
        await home.service._tidy()
        assert asked == []


async def test_a_new_leader_looks_for_what_the_last_one_may_not_have_indexed(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with house(small, clock) as home:
        monkeypatch.setattr(home.backends.index, "process_local", False)
        job_id = await home.finish(request(), 1)
        gone = await home.finish(request("b"), 2)
        await home.backends.index.remove([job_id])
        await home.service._step_down()
        await home.service._lead()
        await home.stub.Purge(pb.PurgeRequest(entry_id=gone), timeout=5)  # evicted meanwhile: it stays away
        clock.advance(SETTLED_S)
        await home.service._tidy()
        assert (await home.found(1), await home.found(2)) == ([job_id], [])
