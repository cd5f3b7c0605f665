"""A connection that is cut, not closed: nobody waits for the call's whole timeout."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc
from shared.domain.errors import UnavailableError
from shared.runtime import rpc, rpc_server
from tests.wire import Wire


class Thinking(retriever_pb2_grpc.RetrieverServiceServicer):
    """Takes longer than anybody keeps quiet, then answers."""

    seconds = 4.0

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:  # noqa: N802  # gRPC's own name
        await asyncio.sleep(self.seconds)
        return pb.PlanResponse()


async def test_a_cut_connection_is_noticed_and_a_quiet_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEPALIVE_S", 1.0)
    server, thinking = grpc.aio.server(options=rpc_server.server_options()), Thinking()
    retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(thinking, server)
    wire = Wire(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    address = f"127.0.0.1:{await wire.start()}"
    async with grpc.aio.insecure_channel(address, options=rpc.channel_options(2**20)) as channel:
        client: Any = retriever_pb2_grpc.RetrieverServiceStub(channel)
        await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=60.0)  # quiet for several pings, and nobody minds
        thinking.seconds = 0.1
        await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=60.0)
        wire.cut, start = True, time.monotonic()
        with pytest.raises(UnavailableError):
            await rpc.call(client.Plan, pb.PlanRequest(), timeout_s=60.0)
        assert time.monotonic() - start < 20.0
    await wire.close()
    await server.stop(0.0)
