"""The client for programs without an event loop: an `AsyncClient` on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar, Unpack

from shared.client.async_client import AsyncClient, OnWait
from shared.client.request_fields import RequestFields
from shared.client.views import Clip, Event, JobView, Picture
from shared.domain.types import JobState

T = TypeVar("T")


class Client:
    """`AsyncClient` for programs without an event loop; several threads may use one client.

    with Client("localhost:50051") as client:
        client.generate("a red fox in the snow").save("fox.png")
    """

    def __init__(
        self,
        target: str,
        *,
        tenant: str = "default",
        retry_s: float = 30.0,
        api_key: str | None = None,
        tls_ca: str | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="afterimage-client", daemon=True)
        self._thread.start()
        self._client: AsyncClient = self._run(
            _made(target, tenant=tenant, retry_s=retry_s, api_key=api_key, tls_ca=tls_ca)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(
        self,
        prompt: str,
        *,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Picture:
        """See AsyncClient.generate."""
        drawn = self._client.generate(
            prompt, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
        )
        return self._run(drawn)

    def generate_video(
        self,
        prompt: str,
        *,
        continue_from: str | None = None,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Clip:
        """See AsyncClient.generate_video."""
        made = self._client.generate_video(
            prompt,
            continue_from=continue_from,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
            on_wait=on_wait,
            **fields,
        )
        return self._run(made)

    def generate_images(
        self,
        prompt: str,
        n: int,
        *,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> list[Picture]:
        """See AsyncClient.generate_images."""
        made = self._client.generate_images(
            prompt, n, timeout_s=timeout_s, idempotency_key=idempotency_key, on_wait=on_wait, **fields
        )
        return self._run(made)

    def generate_stream(
        self,
        prompt: str,
        *,
        n: int = 1,
        previews: bool = False,
        timeout_s: float = 600.0,
        idempotency_key: str = "",
        on_wait: OnWait | None = None,
        **fields: Unpack[RequestFields],
    ) -> Iterator[Event]:
        """See AsyncClient.generate_stream."""
        events = self._client.generate_stream(
            prompt,
            n=n,
            previews=previews,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
            on_wait=on_wait,
            **fields,
        )
        while (event := self._run(_next(events))) is not None:
            yield event

    def plan(self, prompt: str, *, n: int = 1, **fields: Unpack[RequestFields]) -> list[JobView]:
        """See AsyncClient.plan."""
        return self._run(self._client.plan(prompt, n=n, **fields))

    def get_job(self, job_id: str) -> JobView:
        return self._run(self._client.get_job(job_id))

    def get_picture(self, job_id: str) -> Picture:
        return self._run(self._client.get_picture(job_id))

    def list_jobs(
        self, *, state: JobState | None = None, page_size: int = 50, page_token: str = ""
    ) -> tuple[list[JobView], str]:
        return self._run(self._client.list_jobs(state=state, page_size=page_size, page_token=page_token))

    def cancel(self, job_id: str) -> JobView:
        return self._run(self._client.cancel(job_id))

    def erase(self, job_id: str) -> None:
        self._run(self._client.erase(job_id))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _made(target: str, **options: Any) -> AsyncClient:
    return AsyncClient(target, **options)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)
