"""Messages that only another version understands wait or are ignored; malformed ones are buried."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from shared.bus import Bus
from shared.domain.messages import KINDS, GenerateImage, JobSucceeded
from tests.contracts.bus.conftest import SOON_S, DeadLetters, Heard, nothing_for, take, until


@dataclass(frozen=True)
class PaintFresco:
    """A command that only another version of Afterimage knows."""

    job_id: str


async def test_a_command_of_another_version_waits_in_its_lane(
    bus: Bus, lane: str, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("shared.bus.inprocess", "shared.bus.rabbitmq.receiving"):
        monkeypatch.setattr(f"{module}.UNKNOWN_AGAIN_S", 0.2)
    receiver = await bus.receive([lane], prefetch=1)
    strange: Any = PaintFresco("fresco")
    await bus.send(lane, strange)
    await bus.send(lane, GenerateImage("known"))
    assert await take(receiver, 1) == ["known"]  # it holds up nothing
    assert await nothing_for(receiver)
    monkeypatch.setitem(KINDS, "PaintFresco", PaintFresco)  # the other version runs
    fresco = await asyncio.wait_for(receiver.get(), SOON_S)
    assert fresco.message == strange
    await fresco.ack()
    assert await dead_letters() == []


async def test_a_malformed_command_of_a_known_kind_is_buried_at_once(
    bus: Bus, lane: str, dead_letters: DeadLetters
) -> None:
    @dataclass(frozen=True)
    class Malformed:
        job_id: list[int]

    Malformed.__name__ = "GenerateImage"
    receiver = await bus.receive([lane], prefetch=1)
    malformed: Any = Malformed([1])
    await bus.send(lane, malformed)
    await bus.send(lane, GenerateImage("known"))
    assert await take(receiver, 1) == ["known"]
    async with asyncio.timeout(SOON_S):
        while not (letters := await dead_letters()):
            await asyncio.sleep(0.02)
    (letter,) = letters
    assert (letter.kind, letter.body) == ("GenerateImage", '{"job_id":[1]}')
    assert letter.reason.startswith("not understood: ")
    assert "job_id" in letter.reason


async def test_an_event_of_another_version_is_ignored_at_once(
    bus: Bus, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, strange = Heard(), PaintFresco("fresco")
    monkeypatch.setattr("shared.bus.handling.RETRY_AFTER_S", (SOON_S,))  # a retry would be noticed
    monkeypatch.setattr("shared.bus.handling._unknown", set())
    events: Any = [strange, strange, JobSucceeded("a", 1)]
    await bus.subscribe([*{type(event) for event in events}], heard)
    for event in events:
        await bus.publish(event)
    await until(lambda: heard.facts == [JobSucceeded("a", 1)])
    said = capsys.readouterr()
    assert (said.out + said.err).count("event_ignored") == 1
