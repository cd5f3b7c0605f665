"""Conversions of images: on threads of their own, tenants in turn, and not without end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from PIL import Image

from services.gateway.http import pictures
from services.gateway.http.pictures import Conversions
from shared.domain.errors import OverloadedError


@pytest.fixture
def conversions() -> Iterator[Conversions]:
    with contextlib.closing(Conversions()) as made:
        yield made


class Slow:
    """Conversions that go on when the test says so; `begun` has their names."""

    def __init__(self) -> None:
        self.begun, self.go_on = queue.Queue[str](), threading.Event()

    def of(self, name: str) -> Callable[[], bytes]:
        def convert() -> bytes:
            self.begun.put(name)
            assert self.go_on.wait(10.0)
            return threading.current_thread().name.encode()

        return convert

    async def next(self) -> str:
        return await asyncio.to_thread(self.begun.get, timeout=5.0)


async def test_tenants_take_turns_on_threads_of_their_own(conversions: Conversions) -> None:
    """A flood of WebPs took all threads of the event loop, on which a worker of the same process encodes everybody's
    images."""
    slow = Slow()
    flood = [asyncio.create_task(conversions.run("flood", slow.of(f"flood {one}"))) for one in range(8)]
    begun = [await slow.next(), await slow.next()]  # alone, a tenant uses all of them
    quiet = asyncio.create_task(conversions.run("quiet", slow.of("quiet")))
    made = asyncio.create_task(conversions.run("flood", slow.of("made"), made=True))
    await asyncio.sleep(0)
    slow.go_on.set()
    assert all(name.startswith(b"conversions") for name in await asyncio.gather(*flood, quiet, made))
    begun += [await slow.next() for _ in range(8)]
    assert begun[:2] == ["flood 0", "flood 1"]
    assert {"quiet", "made"} <= set(begun[2:5])


async def test_a_caller_who_leaves_frees_no_thread_that_runs_on(conversions: Conversions) -> None:
    """With each request that was sent and left, a tenant had one thread more."""
    slow = Slow()
    flood = [asyncio.create_task(conversions.run("flood", slow.of(f"flood {one}"))) for one in range(3)]
    await slow.next()
    await slow.next()
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    quiet = asyncio.create_task(conversions.run("quiet", slow.of("quiet")))
    await asyncio.sleep(0.05)
    assert slow.begun.empty()
    slow.go_on.set()
    assert await quiet
    assert await slow.next() == "quiet"


async def test_reads_above_the_bound_are_refused_and_generated_images_are_not(
    conversions: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_WAITING", 2)
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    png = out.getvalue()
    asked = [conversions.image("acme", png, "webp", made=one == 5) for one in range(6)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, OverloadedError) for one in ended] == [False] * 4 + [True, False]
    assert await conversions.image("acme", png, "png") == png
    assert (await conversions.image("acme", png, "webp"))[8:12] == b"WEBP"
