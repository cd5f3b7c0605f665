"""Two global monitors over one server's catalog: one decides, the other goes on from there when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from services.global_monitor import service as monitoring
from services.global_monitor.service import GlobalMonitorService
from shared.domain.messages import JobQueued, Message, WorkerReported, WorkersAssigned, lane_of, refine_lane
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import Backends

LEASE_S = 1.5
STEPS = (("large", 1, 0.02), ("small", 1, 0.005))


@dataclass
class Fleet:
    """Two workers that are only facts and obey at once, and what they are told."""

    backends: Backends
    models: dict[str, str] = field(default_factory=lambda: {"w0": "large", "w1": "large"})
    said: list[WorkersAssigned] = field(default_factory=list)

    async def hear(self, fact: Message) -> None:
        assert isinstance(fact, WorkersAssigned)
        self.said.append(fact)
        told = dict(fact.assignments)
        self.models = {name: told.get(name, model) for name, model in self.models.items()}

    async def until(self, holds: Callable[[], bool], within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                for name, model in self.models.items():
                    await self.backends.bus.publish(WorkerReported(name, "gpu", model, 0, 8, STEPS))
                await asyncio.sleep(0.02)


async def _monitor(backends: Backends, settings: Settings) -> GlobalMonitorService:
    changes = {
        "large": "noop:?name=large", "small": "noop:?name=small", "monitor_mode": "throughput",
        "monitor_period_s": 0.5, "monitor_window_s": 60.0, "report_s": 0.1,
    }  # fmt: skip
    service = GlobalMonitorService()
    await service.start(Context(settings.model_copy(update=changes), replace(backends)))
    return service


async def _die(service: GlobalMonitorService) -> None:
    """As a killed process does: it says nothing more, and its lease runs out by itself."""
    service._looking.cancel()
    await asyncio.gather(service._looking, return_exceptions=True)
    await service._subscription.close()


async def test_one_decides_and_the_other_goes_on_from_what_it_said(
    backends: Backends, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LEASE_S", LEASE_S)
    fleet = Fleet(backends)
    await backends.bus.subscribe([WorkersAssigned], fleet.hear)
    both = [await _monitor(backends, settings) for _ in range(2)]

    await fleet.until(lambda: any(one._leads for one in both), 10.0)
    for n in range(8):
        await backends.bus.publish(JobQueued(f"h{n}", refine_lane(), "small", "image", start_step=25))
    await backends.bus.publish(JobQueued("m", lane_of("large"), "large", "noise"))
    await fleet.until(lambda: sorted(fleet.models.values()) == ["large", "small"], 10.0)
    said = len(fleet.said)
    await fleet.until(lambda: len(fleet.said) >= said + 10, 10.0)
    assert sum(one._leads for one in both) == 1
    (leader,), (standby,) = ([one for one in both if one._leads is leads] for leads in (True, False))
    assert standby._monitor.models == leader._monitor.models  # it hears what is decided
    before, said = dict(fleet.models), len(fleet.said)

    await _die(leader)
    await fleet.until(lambda: standby._leads, LEASE_S + 10.0)
    await fleet.until(lambda: len(fleet.said) >= said + 5, 10.0)
    assert fleet.models == before  # nobody was switched for it
    assert {one.assignments for one in fleet.said[said:]} == {tuple(sorted(before.items()))}

    third = await _monitor(backends, settings)
    await standby.drain()  # it gives up the lease: nobody waits for its end
    await fleet.until(lambda: third._leads, LEASE_S + 5.0)
    await third.drain()


async def test_a_leader_that_slept_through_its_lease_says_nothing_more(
    backends: Backends, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LEASE_S", LEASE_S)
    fleet = Fleet(backends)
    await backends.bus.subscribe([WorkersAssigned], fleet.hear)
    first = await _monitor(backends, settings)
    await fleet.until(lambda: first._leads and bool(fleet.said), 10.0)
    await _die(first)
    second = await _monitor(backends, settings)
    await fleet.until(lambda: second._leads, LEASE_S + 10.0)
    second._looking.cancel()  # it holds the lease, and publishes nothing that would be counted
    await asyncio.gather(second._looking, return_exceptions=True)

    said = len(fleet.said)
    await first._renew()  # the first thing it does when it wakes
    await first._tell()
    assert not first._leads
    assert len(fleet.said) == said
    await second.drain()
