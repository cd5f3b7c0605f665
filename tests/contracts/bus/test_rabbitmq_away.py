"""A broker that dies and comes back, is not there, or refuses us: promises are kept, and who is refused knows it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from shared.bus.rabbitmq import RabbitBus, declaring
from shared.bus.rabbitmq.link import REFUSALS
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.domain.messages import GenerateImage, JobSucceeded, Progress
from tests.contracts.bus.conftest import SOON_S, Heard, take, until
from tests.contracts.servers import server_of, url_of

SETTLE_S = declaring.SETTLE_S
BACK_S = 60.0
"""A broker that was killed is back within this; seconds on a quiet machine."""


@pytest.fixture
async def bus(rabbit: RabbitBus) -> RabbitBus:
    return rabbit


def hurry(bus: RabbitBus, wait_s: float) -> None:
    """Let calls wait `wait_s` from now on; what was declared before could take as long as a busy machine needs."""
    bus._wait_s = bus._publisher._wait_s = wait_s


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_everything_comes_back_after_the_broker_did(lane: str, ending: str) -> None:
    server = server_of("rabbitmq")
    bus = await RabbitBus(server.url, wait_s=BACK_S).open()
    gaps: list[int] = []
    everyone, shared = Heard(), Heard()

    async def on_gap() -> None:
        gaps.append(len(everyone.facts))

    await bus.subscribe([JobSucceeded, Progress], everyone, on_gap=on_gap)
    await bus.subscribe([JobSucceeded], shared, queue=lane)
    receiver = await bus.receive([lane], prefetch=2)
    several = await bus.receive([f"{lane}.first", f"{lane}.second"], prefetch=2)
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    await bus.send(f"{lane}.second", GenerateImage("several"))
    await bus.publish(JobSucceeded("before", 1))
    held = await asyncio.wait_for(receiver.get(), SOON_S)
    held_of_several = await asyncio.wait_for(several.get(), SOON_S)
    await until(lambda: len(everyone.facts) == len(shared.facts) == 1)
    await asyncio.sleep(SETTLE_S)

    hurry(bus, 0.5)
    await asyncio.to_thread(getattr(server, ending))
    with pytest.raises(UnavailableError) as refused:
        await bus.send(lane, GenerateImage("while it is away"))
    assert refused.value.retry_after_s
    refusals = (
        bus.publish(JobSucceeded("while it is away", 1)),
        bus.subscribe([Progress], everyone),
        bus.receive([lane], prefetch=1),
        bus.dead_letters(),
    )
    for call in refusals:
        with pytest.raises(UnavailableError):
            await call
    await asyncio.wait_for(bus.publish(Progress("a", 1, 2)), 0.1)  # dropped, not waited for
    await held.reject(delay_s=5.0)  # the broker has it back already
    waiting = asyncio.create_task(several.get())
    await asyncio.to_thread(server.start)

    await held_of_several.ack()  # void: its channel is gone
    assert (await asyncio.wait_for(waiting, BACK_S)).message == GenerateImage("several")
    assert sorted(await take(receiver, 3)) == ["0", "1", "2"]
    async with asyncio.timeout(BACK_S):
        while not gaps:
            await asyncio.sleep(0.05)
    assert gaps == [1]  # told after what came before, and before what came after
    await until_sent(bus, JobSucceeded("after", 1))
    await until(lambda: everyone.facts[-1:] == shared.facts[-1:] == [JobSucceeded("after", 1)])
    await bus.send(lane, GenerateImage("after"))
    assert await take(receiver, 1) == ["after"]
    await bus.close()


async def until_sent(bus: RabbitBus, fact: JobSucceeded) -> None:
    async with asyncio.timeout(BACK_S):
        while True:
            try:
                return await bus.publish(fact)
            except UnavailableError:
                await asyncio.sleep(0.1)


async def test_what_was_sent_is_there_after_a_crash_and_who_was_refused_knows_it(
    lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of("rabbitmq")
    bus = await RabbitBus(server.url, wait_s=BACK_S).open()
    patient = await RabbitBus(server.url, wait_s=BACK_S).open()
    accepted: set[str] = set()
    stop = asyncio.Event()

    async def sender() -> None:
        n = 0
        while not stop.is_set():
            with contextlib.suppress(UnavailableError):
                await bus.send(lane, GenerateImage(str(n)))
                accepted.add(str(n))
            n += 1
            await asyncio.sleep(0.002)

    receiver = await bus.receive([lane], prefetch=1)
    taken: set[str] = set()

    async def worker() -> None:
        while True:
            delivery = await receiver.get()
            taken.add(delivery.message.job_id)  # type: ignore[union-attr]
            await delivery.ack()
            if not stop.is_set():  # until then, some must wait in the lane
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(sender()), asyncio.create_task(worker())]
    await until(lambda: len(taken) >= 20)
    hurry(bus, 0.3)
    monkeypatch.setattr(declaring, "SETTLE_S", SETTLE_S)
    await patient.send(f"{lane}.new", GenerateImage("into a new lane"))
    await asyncio.to_thread(server.kill)
    waiting = asyncio.create_task(patient.send(lane, GenerateImage("patient")))
    before = set(accepted)
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(waiting, BACK_S)
    async with asyncio.timeout(BACK_S):
        while len(accepted - before) < 20:
            await asyncio.sleep(0.05)
    stop.set()
    assert await take(await patient.receive([f"{lane}.new"], prefetch=1), 1) == ["into a new lane"]
    async with asyncio.timeout(BACK_S):
        while not accepted | {"patient"} <= taken:
            await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await bus.close()
    await patient.close()


async def test_a_broker_that_is_not_there_is_named_without_the_password() -> None:
    bus = RabbitBus("amqp://someone:secret@127.0.0.1:1/")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 does not answer") as refused:
        await bus.open(within_s=0.3)
    assert "secret" not in str(refused.value)


async def test_a_wrong_password_is_said_at_once() -> None:
    url = url_of("rabbitmq").replace("guest:guest", "guest:wrong")
    with pytest.raises(ConfigurationError, match=r"bus_url: .*refuses this user or password"):
        await asyncio.wait_for(RabbitBus(url).open(), SOON_S)


async def test_a_virtual_host_that_is_not_there_is_said_by_its_name() -> None:
    url = url_of("rabbitmq").rstrip("/") + "/no%2Fwhere"
    with pytest.raises(ConfigurationError, match=r"bus_url: .*refuses the virtual host 'no/where'"):
        await asyncio.wait_for(RabbitBus(url).open(), SOON_S)


async def test_a_running_bus_that_is_refused_waits_as_for_one_that_is_away(bus: RabbitBus, lane: str) -> None:
    """Somebody restores the broker's users, or has changed the password: the service goes on trying."""
    await bus.send(lane, GenerateImage("before"))
    link = bus._links[0]
    good, link._url = link._url, link._url.with_password("wrong")
    assert link._connection is not None
    await link._connection.close()
    async with asyncio.timeout(SOON_S):
        while link._refusals < REFUSALS:
            await asyncio.sleep(0.02)
    bus._publisher._wait_s = 0.5
    with pytest.raises(UnavailableError, match="does not answer") as refused:
        await bus.send(lane, GenerateImage("meanwhile"))
    assert refused.value.retry_after_s
    link._url, bus._publisher._wait_s = good, 10.0
    await bus.send(lane, GenerateImage("after"))
    assert await take(await bus.receive([lane], prefetch=2), 2) == ["before", "after"]
