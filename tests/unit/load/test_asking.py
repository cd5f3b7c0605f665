"""What a call came to: few words, so that statistics can be kept by them, and when to come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from load.asking import DEFAULT_DELAY_S, answered, failed, message_of
from load.sessions import read_trace
from protos import common_pb2, gateway_pb2, gateway_pb2_grpc
from shared.domain.errors import AfterimageError, InvalidRequestError, OverloadedError, UnavailableError
from shared.runtime.rpc import to_status


@pytest.mark.parametrize(
    ("source", "kind"),
    [("NOISE", "miss"), ("LATENT", "hit"), ("IMAGE", "hit"), ("STITCHED", "hit"), ("EXACT", "exact")],
)
def test_an_answer_is_a_hit_or_a_miss_by_where_its_picture_started(source: str, kind: str) -> None:
    plan = common_pb2.Plan(source=f"PLAN_SOURCE_{source}")
    outcome = answered(gateway_pb2.GenerateResponse(job=common_pb2.Job(plan=plan), picture=b"four"))
    assert (outcome.kind, outcome.name, outcome.picture_bytes) == (kind, f"from {source.lower()}", 4)
    assert outcome.drawn
    assert outcome.again_s is None


def test_the_rows_of_the_trace_become_requests() -> None:
    row = read_trace()[0]
    request = message_of(row, cache="off", steps=7).request
    assert (request.prompt, request.user, request.steps) == (row.prompt, str(row.user), 7)
    assert request.cache == common_pb2.CACHE_MODE_OFF
    assert request.HasField("seed") == (row.seed is not None)
    assert message_of(row, cache="auto").request.steps == row.steps
    with pytest.raises(InvalidRequestError, match="cache"):
        message_of(row, cache="sometimes")


class Refusing(gateway_pb2_grpc.GatewayServiceServicer):
    """Ends every call with the error it was given, as the gateway does."""

    error: AfterimageError = AfterimageError()

    def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        context.abort_with_status(rpc_status.to_status(_status(self.error)))


def _status(error: AfterimageError) -> Any:
    class Call:
        def code(self) -> Any:
            return to_status(error).code

        def details(self) -> str:
            return str(error)

        def trailing_metadata(self) -> Any:
            return to_status(error).trailing_metadata

    return rpc_status.from_call(Call())


@pytest.fixture
def refusing() -> Iterator[tuple[Refusing, Any]]:
    servicer, server = Refusing(), grpc.server(ThreadPoolExecutor(1))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, gateway_pb2_grpc.GatewayServiceStub(channel)
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("error", "name", "least_s"),
    [
        (OverloadedError("256 jobs are waiting", retry_after_s=3.0), "RESOURCE_EXHAUSTED", 3.0),
        (UnavailableError("shutting down"), "UNAVAILABLE", DEFAULT_DELAY_S),
        (InvalidRequestError("steps", "too many", 9), "INVALID_ARGUMENT", None),
    ],
)
def test_a_refusal_is_named_by_its_code_and_comes_back_no_sooner_than_it_was_told(
    refusing: tuple[Refusing, Any], error: AfterimageError, name: str, least_s: float | None
) -> None:
    servicer, stub = refusing
    servicer.error = error
    with pytest.raises(grpc.RpcError) as raised:
        stub.Generate(message_of(read_trace()[0], cache="auto"), timeout=10.0)
    outcomes = [failed(raised.value, random.Random(number)) for number in range(20)]
    assert {(one.kind, one.name, one.drawn) for one in outcomes} == {("failed", name, False)}
    assert {one.delay_s for one in outcomes} == {error.retry_after_s}
    waits = {one.again_s for one in outcomes}
    if least_s is None:
        assert waits == {None}
    else:
        assert len(waits) > 10  # spread out
        assert all(wait is not None and least_s <= wait <= 1.3 * least_s for wait in waits)
