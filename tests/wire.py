"""A TCP relay between a client and a server, that can be cut without anybody being told."""

from __future__ import annotations

import asyncio


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
