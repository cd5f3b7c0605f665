"""The server under attack, its callers with a key each, and whose entries each attack is after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import grpc

from protos import cache_maintainer_pb2, match_predictor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from shared.client import AsyncClient, Picture
from shared.client.views import JobView
from shared.domain.identity import Role

T = TypeVar("T")
AT_ONCE, STEPS = 16, 10
"""Calls in flight; T of every request."""
STILL = 3
"""Equal counts of entries in a row after which the cache has taken in what was generated."""
CALLERS: Mapping[str, tuple[str, Sequence[Role]]] = {
    "victim": ("acme", (Role.USER, Role.PUBLISHER)),
    "colleague": ("acme", (Role.USER, Role.PUBLISHER)),
    "stranger": ("rival", (Role.USER, Role.PUBLISHER)),
    "bystander": ("third", (Role.USER, Role.PUBLISHER)),
}
"""Subject of each key → tenant and roles. All tenants are in `public_tenants`."""
SETTINGS: dict[str, Any] = {
    "capture_steps": "[10, 25, 40]",
    "public_tenants": "acme,rival,third",
    "allow_anonymous": "never",
    "check_share": 0.0,
    "video": "",
    "segmenter": "",
    "http_listen": "",
    "log_level": "error",
}
"""Settings of the server, besides its model: a T of 10 has states after 2, 5 and 8 steps."""


@dataclass(frozen=True)
class Case:
    """A border of the cache that an attack tries to cross. shared: there is none, so the attack can succeed."""

    name: str
    scope: Literal["private", "tenant", "public"]
    attacker: str
    shared: bool


CASES = (
    Case("private entries, a colleague", "private", "colleague", False),
    Case("a tenant's entries, another tenant", "tenant", "stranger", False),
    Case("one tenant for all", "tenant", "colleague", True),
    Case("public entries, another tenant", "public", "stranger", True),
)
"""The first two are what scopes promise. The third is the control: without keys and scopes, everybody is one tenant."""


@dataclass(frozen=True)
class Arena:
    """A running server. clients: one for each of CALLERS. channel: to the services that clients cannot reach."""

    clients: Mapping[str, AsyncClient]
    channel: grpc.aio.Channel
    near_duplicates: int = 0
    """Probes about one victim's prompt after which a limit would refuse the attacker more; 0: no limit."""
    progress: Callable[[float], None] = lambda share: None
    """Takes the share of an attack's attempts that are made, after each round."""

    async def generate(self, who: str, prompts: Iterable[str], **fields: Any) -> list[Picture]:
        client = self.clients[who]
        return await in_flight(lambda prompt: client.generate(prompt, **{"steps": STEPS, **fields}), prompts)

    async def plan(self, who: str, prompts: Iterable[str], **fields: Any) -> list[JobView]:
        """Return the job that each prompt would get now; nothing is generated or counted."""

        async def one(prompt: str) -> JobView:
            (view,) = await self.clients[who].plan(prompt, **{"steps": STEPS, **fields})
            return view

        return await in_flight(one, prompts)

    async def settled(self) -> None:
        """Wait until the cache and the match predictor have taken in everything that was generated."""
        seen: list[tuple[int, int]] = []
        async with asyncio.timeout(120.0):
            while len(seen) < STILL or len(set(seen[-STILL:])) > 1:
                await asyncio.sleep(0.1)
                seen.append(await self._held())

    async def purge(self) -> None:
        """Remove every entry from the cache."""
        stub: Any = CacheMaintainerServiceStub(self.channel)
        await stub.Purge(cache_maintainer_pb2.PurgeRequest(everything=True), timeout=60.0)
        await self.settled()

    async def _held(self) -> tuple[int, int]:
        maintainer: Any = CacheMaintainerServiceStub(self.channel)
        predictor: Any = MatchPredictorServiceStub(self.channel)
        held = await maintainer.Stats(cache_maintainer_pb2.StatsRequest(), timeout=30.0)
        known = await predictor.Stats(match_predictor_pb2.StatsRequest(), timeout=30.0)
        return held.entries, known.entries


@asynccontextmanager
async def arena(address: str, keys: Mapping[str, str], channel: grpc.aio.Channel) -> AsyncIterator[Arena]:
    """Yield the arena of a running server. keys: the text of each caller's key."""
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(AsyncClient(address, api_key=key, retry_s=0.0))
            for name, key in keys.items()
        }
        yield Arena(clients, channel)


async def in_flight(call: Callable[[str], Awaitable[T]], prompts: Iterable[str], at_once: int = AT_ONCE) -> list[T]:
    """Return the answers to all prompts in order, with at most `at_once` calls at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(prompt: str) -> T:
        async with places:
            return await call(prompt)

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))
