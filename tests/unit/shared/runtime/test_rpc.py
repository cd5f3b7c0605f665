"""Every error crosses gRPC in one shape and arrives as itself."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest
import sqlalchemy as sa

from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc
from shared.catalog.engines.database import explain
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)
from shared.runtime import rpc, rpc_server
from shared.runtime.direct import DirectChannel

ERRORS = [
    InvalidRequestError("steps", "must lie between 1 and 1000", 0),
    OverloadedError("256 jobs are waiting", retry_after_s=2.5),
    StorageFullError("4 MiB left", retry_after_s=30.0),
    NotFoundError("no job 42"),
    JobFailedError("job 42 failed: out of memory"),
    AfterimageError("a bug"),
    UnavailableError("the catalog does not answer"),
]


class Failing(retriever_pb2_grpc.RetrieverServiceServicer):
    error: Exception = RuntimeError("unset")

    async def Plan(self, request: pb.PlanRequest, context: object) -> pb.PlanResponse:  # noqa: N802  # gRPC's own name
        raise self.error


@pytest.fixture(params=["over a socket", "directly"])
async def stub(request: Any) -> AsyncIterator[tuple[Failing, retriever_pb2_grpc.RetrieverServiceStub]]:
    server: Any = rpc_server.server()
    servicer = Failing()
    retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        called = DirectChannel(channel, server, 2**22) if request.param == "directly" else channel
        yield servicer, retriever_pb2_grpc.RetrieverServiceStub(called)
    await server.stop(None)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_arrives_as_itself(
    error: AfterimageError, stub: tuple[Failing, retriever_pb2_grpc.RetrieverServiceStub]
) -> None:
    servicer, client = stub
    servicer.error = error
    with pytest.raises(type(error)) as caught:
        await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=5)
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert caught.value.retry_after_s == error.retry_after_s
    if isinstance(error, InvalidRequestError):
        assert isinstance(caught.value, InvalidRequestError)
        assert caught.value.field == "steps"


async def test_an_unexpected_error_says_its_kind_but_not_its_content(
    stub: tuple[Failing, retriever_pb2_grpc.RetrieverServiceStub],
) -> None:
    servicer, client = stub
    servicer.error = KeyError("a secret")
    with pytest.raises(AfterimageError, match="internal error: KeyError") as caught:
        await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=5)
    assert "secret" not in str(caught.value)


async def test_what_names_hosts_and_users_is_logged_and_not_told(
    stub: tuple[Failing, retriever_pb2_grpc.RetrieverServiceStub], logs: list[dict[str, Any]]
) -> None:
    servicer, client = stub
    cause = sa.exc.OperationalError("SELECT 1", {}, ConnectionRefusedError("[Errno 111] Connection refused"))
    servicer.error = explain(cause, "postgresql+asyncpg://afterimage@127.0.0.1:20131/postgres")
    with pytest.raises(UnavailableError) as caught:
        await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=5)
    assert str(caught.value) == "the catalog does not answer; ask again in a moment"
    assert caught.value.retry_after_s == 1.0
    assert [(one["event"], "afterimage@127.0.0.1:20131" in one["error"]) for one in logs] == [("a call failed", True)]


async def test_a_method_that_nobody_has_says_who_may_listen_there() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = retriever_pb2_grpc.RetrieverServiceStub(channel)
        with pytest.raises(ConfigurationError, match="another service, or another version of it"):
            await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=5)
    await server.stop(None)


async def test_a_service_that_is_away_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        client = retriever_pb2_grpc.RetrieverServiceStub(channel)
        with pytest.raises(UnavailableError) as caught:
            await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=2)
    assert caught.value.outside == "does not answer"  # gRPC's own words name the address


@pytest.mark.parametrize(
    "error", [NotFoundError("🦊" * 60_000), InvalidRequestError("prompt", "y" * 60_000, "z" * 60_000)]
)
def test_an_error_is_never_too_long_for_its_client(error: AfterimageError) -> None:
    """A long id in an error came to the client as RESOURCE_EXHAUSTED, which asks it to come back."""
    status = rpc.to_status(error)
    sizes = [len(quote(status.details)), *(len(base64.b64encode(value)) for _, value in status.trailing_metadata)]
    assert sum(sizes) < 8192
    assert status.details.endswith("…")
