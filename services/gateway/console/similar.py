"""Search of a caller's own images by the similarity of their prompts to a text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protos import embedder_pb2, retriever_pb2
from protos.embedder_pb2_grpc import EmbedderServiceStub
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.gateway.caller import Caller
from services.gateway.fanout import Rows
from services.gateway.response_checks import check_vector
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.identity import under
from shared.domain.types import Job, Scope, owner_key
from shared.runtime import rpc
from shared.service import Context

TIMEOUT_S = 10.0
MOST = 100
"""Most entries that one search reads."""


class Similar:
    """Finds what is in the cache: an image leaves the search with its last cached state."""

    def __init__(self, context: Context, jobs: Rows, planning: Callable[[str], asyncio.Semaphore]) -> None:
        """planning: returns a tenant's places for plans. Searches take the same ones, or a flood of them would make
        other tenants' requests time out."""
        self._context, self._jobs, self._planning = context, jobs, planning

    async def jobs(self, text: str, who: Caller) -> list[tuple[Job, float]]:
        """Return the caller's jobs and the cosine of their prompts to the text, the nearest first.

        They are the caller's among the MOST nearest entries that it may start from, which a tenant's callers share. A
        private entry is found if its request named no user. Raises the error of the embedder or the retriever.
        """
        async with self._planning(who.tenant):
            return await self._nearest(text, who)

    async def _nearest(self, text: str, who: Caller) -> list[tuple[Job, float]]:
        embedder = self._context.stub(EmbedderServiceStub, "embedder")
        user = under(who.subject, "")
        asked = embedder_pb2.EmbedTextRequest(texts=[text], owner=owner_key(Scope.PRIVATE, who.tenant, user))
        embedded = await rpc.call(embedder.EmbedText, asked, timeout_s=TIMEOUT_S)
        message = retriever_pb2.NearestRequest(
            tenant=who.tenant,
            user=user,
            vector=check_vector(embedded.embeddings[0].vector),
            encoder_hash=embedded.encoder_hash,
            limit=MOST,
        )
        retriever = self._context.stub(RetrieverServiceStub, "retriever")
        found = await rpc.call(retriever.Nearest, message, timeout_s=TIMEOUT_S)
        jobs = await asyncio.gather(*(self._own(hit.entry_id, who) for hit in found.hits))
        return [(job, hit.similarity) for job, hit in zip(jobs, found.hits, strict=True) if job is not None]

    async def _own(self, job_id: str, who: Caller) -> Job | None:
        """Return the job of an entry, which has its id; None for another caller's, and where it has expired."""
        try:
            job = await self._jobs.get(job_id)
        except (NotFoundError, UnreadableRowError):
            return None
        return job if who.may_see(job.request.tenant, job.request.user) else None
