"""What every message queue does for the services."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import Bus, Receiver
from shared.domain.errors import UnavailableError
from shared.domain.messages import GenerateImage
from tests.contracts.bus.conftest import NOTHING_S, SOON_S, nothing_for, take, until


async def test_a_command_arrives_as_it_was_sent(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    sent = GenerateImage("job-ü")
    await bus.send(lane, sent)
    delivery = await asyncio.wait_for(receiver.get(), SOON_S)
    assert delivery.message == sent
    assert delivery.message is not sent  # it was encoded, as it is on a wire
    assert not delivery.redelivered


async def test_a_lane_keeps_commands_until_someone_receives(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    assert await take(await bus.receive([lane], prefetch=3), 3) == ["0", "1", "2"]


async def test_priorities_from_five_overtake_where_the_bus_has_them(bus: Bus, lane: str) -> None:
    # two urgent ones only: RabbitMQ 4 serves a waiting task after every second urgent one, so that it never starves
    for n, priority in enumerate([0, 4, 5, 9, 1]):
        await bus.send(lane, GenerateImage(f"{priority}-{n}"), priority=priority)
    receiver = await bus.receive([lane], prefetch=1)
    in_order = ["0-0", "4-1", "5-2", "9-3", "1-4"]
    urgent_first = ["5-2", "9-3", "0-0", "4-1", "1-4"]
    assert await take(receiver, 5) == (urgent_first if bus.priorities else in_order)


async def test_earlier_lanes_go_first(bus: Bus, lane: str) -> None:
    await bus.send(f"{lane}.second", GenerateImage("second"))
    await bus.send(lane, GenerateImage("first"))
    assert await take(await bus.receive([lane, f"{lane}.second"], prefetch=1), 2) == ["first", "second"]


async def test_prefetch_bounds_what_is_in_hand(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    receiver = await bus.receive([lane], prefetch=2)
    first = await receiver.get()
    await receiver.get()
    assert await nothing_for(receiver)
    await first.ack()
    assert await take(receiver, 1) == ["2"]


async def test_a_waiting_receiver_is_woken(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    waiting = asyncio.create_task(receiver.get())
    await asyncio.sleep(0.01)
    await bus.send(lane, GenerateImage("late"))
    assert (await asyncio.wait_for(waiting, SOON_S)).message == GenerateImage("late")


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_cancelled_get_loses_nothing(bus: Bus, lane: str, lanes: int) -> None:
    receiver = await bus.receive([lane, f"{lane}.second"][:lanes], prefetch=4)
    for n in range(20):
        waiting = asyncio.create_task(receiver.get())
        await asyncio.sleep(0)
        await bus.send(lane, GenerateImage(str(n)))
        if n % 2:
            await asyncio.sleep(0)
        waiting.cancel()
        got = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(got[0], BaseException):
            assert await take(receiver, 1) == [str(n)]
        else:
            assert got[0].message == GenerateImage(str(n))
            await got[0].ack()


@pytest.mark.parametrize("count", [1, 2])
async def test_two_receivers_share_their_lanes(bus: Bus, lane: str, count: int) -> None:
    lanes = [lane, f"{lane}.second"][:count]
    taken: list[list[str]] = [[], []]

    async def work(receiver: Receiver, mine: list[str]) -> None:
        while True:
            mine.extend(await take(receiver, 1))
            await asyncio.sleep(0.005)

    working = [asyncio.create_task(work(await bus.receive(lanes, prefetch=1), mine)) for mine in taken]
    for n in range(20):
        await bus.send(lanes[n % count], GenerateImage(str(n)))
    await until(lambda: sum(map(len, taken)) == 20)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert all(taken)
    assert sorted(int(job_id) for mine in taken for job_id in mine) == list(range(20))


async def test_prefetch_counts_over_all_lanes(bus: Bus, lane: str) -> None:
    second = f"{lane}.second"
    full = await bus.receive([lane, second], prefetch=2)
    waiting = asyncio.create_task(full.get())
    await asyncio.sleep(NOTHING_S)
    for n in range(2):  # it listens to both by now; it takes no more than two in all
        await bus.send(second, GenerateImage(f"second-{n}"))
        await bus.send(lane, GenerateImage(f"first-{n}"))
    held = [await asyncio.wait_for(waiting, SOON_S), await asyncio.wait_for(full.get(), SOON_S)]
    assert await nothing_for(full)
    rest = await take(await bus.receive([second, lane], prefetch=2), 2)
    ids = [delivery.message.job_id for delivery in held] + rest  # type: ignore[union-attr]
    assert sorted(ids) == ["first-0", "first-1", "second-0", "second-1"]


async def test_closing_a_receiver_returns_what_it_held(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    first = await bus.receive([lane], prefetch=2)
    held = [await first.get(), await first.get()]
    await first.close()
    await held[0].ack()  # too late: it is no longer ours
    second = await bus.receive([lane], prefetch=3)
    again = [await asyncio.wait_for(second.get(), SOON_S) for _ in range(3)]
    assert sorted(delivery.message.job_id for delivery in again) == ["0", "1", "2"]  # type: ignore[union-attr]
    assert {d.message.job_id: d.redelivered for d in again} == {"0": True, "1": True, "2": False}  # type: ignore[union-attr]


async def test_a_rejected_command_comes_back(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    await (await receiver.get()).reject()
    again = await asyncio.wait_for(receiver.get(), SOON_S)
    assert (again.message, again.redelivered) == (GenerateImage("a"), True)


async def test_a_delayed_command_comes_back_later(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("slow"))
    await (await receiver.get()).reject(delay_s=0.3)
    await bus.send(lane, GenerateImage("quick"))
    assert await take(receiver, 1) == ["quick"]  # the delayed one holds no place meanwhile
    assert await nothing_for(receiver)
    assert await take(receiver, 1) == ["slow"]


async def test_a_settled_delivery_stays_settled(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    delivery = await receiver.get()
    await delivery.ack()
    await delivery.reject()
    assert await nothing_for(receiver)


async def test_closing_the_bus_ends_whoever_waits(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    waiting = asyncio.create_task(receiver.get())
    await asyncio.sleep(0.01)
    await bus.close()
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(waiting, SOON_S)
    with pytest.raises(UnavailableError):
        await bus.send(lane, GenerateImage("a"))
