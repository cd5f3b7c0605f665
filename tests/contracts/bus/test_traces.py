"""A message carries the trace of its sender, and its handling is a span below its sending."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import Bus, trace
from shared.bus.trace import system_of
from shared.domain.messages import GenerateImage, JobSucceeded, Message, Progress
from shared.runtime import tracing
from shared.runtime.settings import Settings
from shared.runtime.tracing import close_tracing, open_tracing
from tests.collector import attributes, collector
from tests.contracts.bus.conftest import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
"""Not sampled: no span of a bus takes the caller's place."""


@pytest.mark.parametrize("traced", [True, False])
async def test_the_trace_goes_on_where_a_message_is_handled(bus: Bus, lane: str, traced: bool) -> None:
    tracer = open_tracing(Settings(trace_endpoint="http://127.0.0.1:9"), "bus") if traced else None
    try:
        await _goes_on(bus, lane)
    finally:
        close_tracing(tracer)
    assert tracing.tracing() is False


async def _goes_on(bus: Bus, lane: str) -> None:
    handled: list[dict[str, str]] = []

    async def handler(_fact: object) -> None:
        handled.append(tracing.outgoing())

    async def asked() -> None:
        tracing.adopt({"traceparent": PARENT})
        await bus.send(lane, GenerateImage("a"))
        await bus.publish(JobSucceeded("a", 1))

    await bus.subscribe([JobSucceeded], handler)
    receiver = await bus.receive([lane], prefetch=1)
    await asyncio.create_task(asked())
    delivery = await receiver.get()
    assert tracing.outgoing() == {"traceparent": PARENT}
    await delivery.reject()  # its copy belongs to the same trace
    tracing.adopt({})
    assert tracing.outgoing() == {}
    await receiver.get()
    assert tracing.outgoing() == {"traceparent": PARENT}
    await until(lambda: handled == [{"traceparent": PARENT}])
    await bus.publish(JobSucceeded("b", 1))
    await bus.send(lane, GenerateImage("c"))
    tracing.adopt({})
    await bus.publish(JobSucceeded("c", 1))
    await until(lambda: len(handled) == 3)
    assert handled[1:] == [{"traceparent": PARENT}, {}]


async def test_handling_is_a_span_below_sending(bus: Bus, lane: str) -> None:
    handled: list[str] = []

    async def handler(fact: Message) -> None:
        handled.append(type(fact).__name__)

    async def unnamed(_: Message) -> None: ...

    async def asked() -> None:
        with tracing.served("call", {}, {}):
            await bus.send(lane, GenerateImage("a"))
            await bus.publish(Progress("a", 1, 2))
            await bus.publish(JobSucceeded("a", 1))
            await until(lambda: len(handled) == 2)

    async with collector() as it:
        tracer = open_tracing(Settings(trace_endpoint=it.address, trace_ratio=1.0), "bus")
        await bus.subscribe([JobSucceeded, Progress], handler, queue=lane)
        await bus.subscribe([JobSucceeded, Progress], unnamed)
        receiver = await bus.receive([lane], prefetch=1)
        await bus.publish(JobSucceeded("before", 1))  # of no trace
        await until(lambda: handled.pop() == "JobSucceeded" if handled else False)
        await asyncio.create_task(asked())
        delivery = await receiver.get()
        with trace.processing(system_of(bus), delivery.lane):
            await delivery.ack()
        await asyncio.to_thread(close_tracing, tracer)
    sent = f"send {lane}"
    assert it.edges == {
        ("", "call"),
        ("call", sent),
        (sent, f"process {lane}"),
        ("call", "publish JobSucceeded"),
        ("publish JobSucceeded", "process JobSucceeded"),
    }
    assert attributes(it.one(sent)) == {
        "messaging.system": "inprocess" if bus.process_local else "rabbitmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": lane,
    }
    assert [it.one(name).kind for name in (sent, f"process {lane}")] == [4, 5]
