"""Images in the format that a request asks for, converted on threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Literal

from shared.domain.errors import InvalidRequestError, OverloadedError

Output = Literal["png", "jpeg", "webp"]
QUALITY = 95
"""Quality of JPEG and WebP images for which a request names no `output_compression`, 0–100."""
MOST_WAITING = 128
"""Conversions of one tenant that wait; reads beyond are refused. A browser asks for six at once."""
_AT_ONCE = 2
"""Conversions that run at the same time."""


def check_output(output: Output) -> None:
    """Raise InvalidRequestError for a format that takes Pillow where it is not installed."""
    if output != "png" and find_spec("PIL") is None:
        raise InvalidRequestError("output_format", "must be png: this gateway is installed without Pillow", output)


class Conversions:
    """Threads that convert images and clips, waiting tenants in turn: a flood of one holds up neither the others nor a
    worker of this process, which encodes its images on the event loop's own threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "conversions")
        self._running = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those who wait for a thread, by tenant; the tenant in front has the next turn."""

    async def image(
        self, tenant: str, png: bytes, output: Output, quality: int | None = None, *, made: bool = False
    ) -> bytes:
        """Return the image in this format; a PNG is returned as stored. Raises InvalidRequestError for a format that
        `check_output` refuses, and what `run` raises."""
        check_output(output)
        if output == "png":
            return png
        return await self.run(tenant, _encoded, png, output, QUALITY if quality is None else quality, made=made)

    async def run(self, tenant: str, convert: Callable[..., bytes], *given: Any, made: bool = False) -> bytes:
        """Return what `convert` makes of the given values, on a thread, once it is this tenant's turn.

        made: of a request that just generated it, which goes before the tenant's others and is never refused. Raises
        OverloadedError for others of a tenant that has MOST_WAITING.
        """
        await self._turn(tenant, made)
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._ended)

        converting = self._threads.submit(convert, *given)
        converting.add_done_callback(ended)  # not with the caller, who may leave while the thread runs on
        return await asyncio.wrap_future(converting)

    async def _turn(self, tenant: str, made: bool) -> None:
        waiting = self._waiting.setdefault(tenant, deque())
        if not made and len(waiting) >= MOST_WAITING:
            raise OverloadedError(f"{len(waiting)} images of this tenant wait to be converted", retry_after_s=1.0)
        turn = asyncio.get_running_loop().create_future()
        (waiting.appendleft if made else waiting.append)(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same time
                self._ended()
            raise

    def _ended(self) -> None:
        self._running -= 1
        self._next()

    def _next(self) -> None:
        while self._waiting and self._running < _AT_ONCE:
            tenant = next(iter(self._waiting))
            waiting = self._waiting.pop(tenant)
            turn = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # behind the others
            if not turn.done():
                turn.set_result(None)
                self._running += 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _encoded(png: bytes, output: Output, quality: int) -> bytes:
    from PIL import Image  # gateways in containers do without

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(out, output.upper(), quality=quality)
    return out.getvalue()
