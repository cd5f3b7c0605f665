"""A caller without a key erases what callers without a key made, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protos import gateway_pb2
from services.gateway.caller import caller_of
from services.gateway.erasing import to_erase
from services.gateway.service import GatewayService
from shared.catalog.jobs import job_rows
from shared.domain.errors import NotFoundError, PermissionDeniedError
from shared.domain.identity import ANONYMOUS, Principal, Role
from shared.domain.messages import DataErased
from shared.domain.types import Request, to_json
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import open_backends
from tests.unit.cached import finished_job, request, unit

OPS = Principal("acme", "ops", frozenset({Role.OPERATOR}))


async def test_without_a_key_only_jobs_without_a_key_are_erased(settings: Settings) -> None:
    backends = await open_backends(settings)
    try:
        mine, other = [
            (await finished_job(backends, request(tenant="acme", user=user), unit(1))).id
            for user in ("ann", "key:ann/")
        ]

        async def asked(who: Principal, **what: Any) -> Any:
            given, caller = gateway_pb2.EraseRequest(**what), caller_of(who, [("tenant", "acme")])
            return await to_erase(given, caller, who, "actor", backends.catalog, settings)

        assert (await asked(ANONYMOUS, job_id=mine)).job_id == mine
        with pytest.raises(NotFoundError):
            await asked(ANONYMOUS, job_id=other)
        what: dict[str, Any]
        for what in ({"user": "ann"}, {"whole_tenant": True}, {"whole_tenant": True, "tenant": "rival"}):
            with pytest.raises(PermissionDeniedError):
                await asked(ANONYMOUS, **what)
            assert (await asked(OPS, **what)).WhichOneof("what") in what
    finally:
        await backends.close()


async def test_a_gateway_forgets_the_rows_in_its_memory(settings: Settings) -> None:
    """A gateway in a process of its own learns of an erasure by the event alone."""
    away = dict.fromkeys(("embedder_address", "match_predictor_address", "retriever_address"), "127.0.0.1:9")
    async with running([GatewayService()], settings.model_copy(update=away)) as process:
        job_rows._read(Request, to_json(request("an erased prompt")))
        await process.context.backends.bus.publish(DataErased(("any",)))
        async with asyncio.timeout(5.0):
            while job_rows._read.cache_info().currsize:
                await asyncio.sleep(0.01)
