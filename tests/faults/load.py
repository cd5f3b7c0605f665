"""Clients that insist: each asks for one picture after the other, under one key until it has it or its job failed."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shared.client import AsyncClient, Picture
from shared.domain.errors import AfterimageError, JobFailedError
from shared.runtime.addresses import target_of
from tests.faults.verdict import Answer

RETRY_S = (0.1, 1.0)
"""Between two calls for the same picture."""
IMPATIENT = 0.1
"""Share of calls broken off by their client, who then asks again at once."""


def answer_of(picture: Picture) -> Answer:
    return Answer(picture.job.id, hashlib.sha256(picture.png).hexdigest())


class Load:
    """A closed loop of `clients`, half of whom try the first gateway first, half the second."""

    def __init__(self, gateways: Sequence[str], requests: Mapping[str, Mapping[str, Any]], chance: random.Random):
        self.requests = requests
        self.answers: dict[str, list[Answer]] = {}
        """By key, of every key asked for; empty until there is one."""
        self.errors: Counter[str] = Counter()
        """What clients saw before they had their picture."""
        self.failed: list[str] = []
        """Keys whose job failed for good: their clients went on without a picture."""
        self.broken_off = 0
        self.waited_s: list[float] = []
        """Per picture, from the first call to the answer."""
        self.in_flight = 0
        self._targets = [target_of(",".join(order), "target") for order in (gateways, gateways[::-1])]
        self._chance = chance
        self._begun = self._changed = self._full_until = time.monotonic()
        self._area, self._done = 0.0, 0
        self._waiting: deque[str] = deque()

    @property
    def done(self) -> int:
        """Keys with a picture."""
        return self._done

    @property
    def mean_concurrency(self) -> float:
        """Calls under way, averaged over the time in which there was one more to make."""
        return self._area / max(self._full_until - self._begun, 1e-9)

    async def run(self, clients: int) -> None:
        """Until every key has its picture, or a job that failed; cancelled, the others stay without."""
        waiting = self._waiting = deque(self.requests)
        self._begun = self._changed = time.monotonic()

        async def timed(client: AsyncClient, key: str) -> None:
            begun = time.monotonic()
            self._count(+1, more=bool(waiting))
            try:
                await self._ask(client, key)
            finally:
                self._count(-1, more=bool(waiting))
            if self.answers[key]:
                self.waited_s.append(time.monotonic() - begun)
                self._done += 1

        await self._users(clients, waiting, timed)

    def enough(self) -> None:
        """Nothing more is asked for; what is under way is waited for by `run`."""
        self._waiting.clear()

    @property
    def every_answer(self) -> dict[str, list[Answer]]:
        """By key, of all that were to be asked for: none also where the time was over before its turn came."""
        return {key: self.answers.get(key, []) for key in self.requests}

    async def ask_again(self, keys: Iterable[str], clients: int, within_s: float) -> list[str]:
        """Every key once more, when everything is well: what comes back is added to its answers. The keys that did not
        get again, in time, what they had got."""
        asked, before = list(keys), {key: len(answers) for key, answers in self.answers.items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._users(clients, deque(asked), self._ask)
        return [key for key in asked if len(self.answers[key]) == before[key] or len(set(self.answers[key])) > 1]

    async def _users(
        self, clients: int, waiting: deque[str], ask: Callable[[AsyncClient, str], Awaitable[None]]
    ) -> None:
        async def user(target: str) -> None:
            async with AsyncClient(target, retry_s=0.0) as client:
                while waiting:
                    await ask(client, waiting.popleft())

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(user(self._targets[number % 2]))

    async def _ask(self, client: AsyncClient, key: str) -> None:
        answers = self.answers.setdefault(key, [])
        try:
            answers.append(answer_of(await self._insist(client, key)))
        except JobFailedError:
            self.failed.append(key)

    async def _insist(self, client: AsyncClient, key: str) -> Picture:
        fields = dict(self.requests[key])
        patience_s = self._chance.uniform(0.1, 3.0) if self._chance.random() < IMPATIENT else None
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    return await client.generate(idempotency_key=key, **fields)
            except TimeoutError:
                self.broken_off, patience_s = self.broken_off + 1, None
            except AfterimageError as error:
                self.errors[type(error).__name__] += 1
                if isinstance(error, JobFailedError):  # whoever asks again gets the same answer
                    raise
                await asyncio.sleep(max(self._chance.uniform(*RETRY_S), min(error.retry_after_s or 0.0, 2.0)))

    def _count(self, change: int, *, more: bool) -> None:
        now = time.monotonic()
        if more:
            self._area += self.in_flight * (now - self._changed)
            self._full_until = now
        self._changed = now
        self.in_flight += change
