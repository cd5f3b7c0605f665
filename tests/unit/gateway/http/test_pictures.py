"""Conversions of images: on threads of their own, one of each tenant at a time, and not without end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Iterator

import pytest
from PIL import Image

from services.gateway.http import pictures
from services.gateway.http.pictures import Conversions
from shared.domain.errors import OverloadedError


@pytest.fixture
def conversions() -> Iterator[Conversions]:
    with contextlib.closing(Conversions()) as made:
        yield made


async def test_a_flood_of_one_tenant_leaves_a_thread_to_others(conversions: Conversions) -> None:
    """Its WebPs took all threads of the event loop, on which a worker of the same process encodes everybody's
    images."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> bytes:
        begun.release()
        assert go_on.wait(10.0)
        return threading.current_thread().name.encode()

    flood = [asyncio.create_task(conversions.run("flood", slow)) for _ in range(8)]
    assert await asyncio.to_thread(begun.acquire, timeout=5.0)
    assert await asyncio.wait_for(conversions.run("quiet", lambda: b"done"), 5.0) == b"done"
    assert not begun.acquire(blocking=False)  # the second of the flood waits for the first
    go_on.set()
    assert all(name.startswith(b"conversions") for name in await asyncio.gather(*flood))


async def test_reads_above_the_bound_are_refused_and_generated_images_are_not(
    conversions: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_ASKED", 2)
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    png = out.getvalue()
    asked = [conversions.image("acme", png, "webp", made=made) for made in (False, False, False, True)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, OverloadedError) for one in ended] == [False, False, True, False]
    assert await conversions.image("acme", png, "png") == png
    assert (await conversions.image("acme", png, "webp"))[8:12] == b"WEBP"
