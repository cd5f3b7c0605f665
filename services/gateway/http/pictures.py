"""Images in the format that a request asks for, converted on threads of their own."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Literal
from weakref import WeakValueDictionary

from shared.domain.errors import InvalidRequestError, OverloadedError

Output = Literal["png", "jpeg", "webp"]
QUALITY = 95
"""Quality of JPEG and WebP images for which a request names no `output_compression`, 0–100."""
MOST_ASKED = 64
"""Conversions of one tenant that run or wait; reads beyond are refused. A page of the console asks for six at once."""
_AT_ONCE = 2
"""Conversions that run at the same time."""


def check_output(output: Output) -> None:
    """Raise InvalidRequestError for a format that takes Pillow where it is not installed."""
    if output != "png" and find_spec("PIL") is None:
        raise InvalidRequestError("output_format", "must be png: this gateway is installed without Pillow", output)


class Conversions:
    """Threads that convert images and clips, one of each tenant at a time: no flood of them holds up other tenants, or
    a worker of this process, which encodes its images on the event loop's own threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "conversions")
        self._places = WeakValueDictionary[str, asyncio.Semaphore]()
        """The place of each tenant that has conversions."""
        self._asked = Counter[str]()

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

        made: of a request that just generated it, which is never refused. Raises OverloadedError for others of a tenant
        that has MOST_ASKED.
        """
        if not made and self._asked[tenant] >= MOST_ASKED:
            said = f"too many images are being converted ({self._asked[tenant]} of your tenant)"
            raise OverloadedError(said, retry_after_s=1.0)
        self._asked[tenant] += 1
        try:
            async with self._places.setdefault(tenant, asyncio.Semaphore()):
                return await asyncio.get_running_loop().run_in_executor(self._threads, convert, *given)
        finally:
            self._asked[tenant] -= 1
            self._asked += Counter()  # without those that have none

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _encoded(png: bytes, output: Output, quality: int) -> bytes:
    from PIL import Image  # gateways in containers do without

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(out, output.upper(), quality=quality)
    return out.getvalue()
