"""Processes that stay ready to be ranks: their libraries load once, in one server that forks them."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.unit.trainer.pipeline.runtime import tiny_jobs

TIMEOUT_S = 120.0


class RankPool:
    """Up to four ranks."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([tiny_jobs.__name__])
        self._ranks: list[tuple[Any, Connection]] = []
        self._folder = tempfile.TemporaryDirectory()
        self._runs = 0

    def run(self, case: tiny_jobs.Case) -> list[tiny_jobs.Result]:
        """Run a case; return each rank's losses and parameters. An exception of a rank is raised here."""
        while len(self._ranks) < case.ranks:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        self._runs += 1
        store = str(Path(self._folder.name) / str(self._runs))
        for rank in range(case.ranks):
            self._ranks[rank][1].send((rank, store, case))
        found = []
        for rank in range(case.ranks):
            if not self._ranks[rank][1].poll(TIMEOUT_S):
                raise TimeoutError(f"rank {rank} of {case}")
            found.append(self._ranks[rank][1].recv())
        if errors := [str(one) for one in found if isinstance(one, Exception)]:
            raise RuntimeError("\n".join(errors))
        return found

    def close(self) -> None:
        for process, connection in self._ranks:
            connection.send(None)
            process.join(5)
            if process.is_alive():
                process.kill()
            connection.close()
        self._folder.cleanup()


def _serve(connection: Connection) -> None:
    while (asked := connection.recv()) is not None:
        rank, store, case = asked
        try:
            losses, parameters = tiny_jobs.run_rank(rank, store, case)
            connection.send((losses, {name: one.numpy() for name, one in parameters.items()}))
        except Exception as error:
            connection.send(RuntimeError(f"rank {rank}: {''.join(traceback.format_exception(error))}"))
