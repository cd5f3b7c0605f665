"""A connection that is cut, not closed: nobody waits for the call's whole timeout."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc
from shared import rpc
from shared.errors import UnavailableError


class Thinking(retriever_pb2_grpc.RetrieverServiceServicer):
    """Takes longer than anybody keeps quiet, then answers."""

    seconds = 4.0

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:  # noqa: N802  # gRPC's own name
        await asyncio.sleep(self.seconds)
        return pb.PlanResponse()


class Wire:
    """A TCP relay; cut, it swallows what comes and closes nothing."""

    def __init__(self, port: int) -> None:
        self._port, self._tasks = port, set[asyncio.Task[None]]()
        self._writers: list[asyncio.StreamWriter] = []
        self.cut = False

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            self._tasks.add(asyncio.create_task(self._relay(source, sink)))

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not self.cut:
                sink.write(data)
                await sink.drain()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, *(writer.wait_closed() for writer in self._writers), return_exceptions=True)


async def test_a_cut_connection_is_noticed_and_a_quiet_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEPALIVE_S", 1.0)
    server, thinking = grpc.aio.server(options=rpc.OPTIONS), Thinking()
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
