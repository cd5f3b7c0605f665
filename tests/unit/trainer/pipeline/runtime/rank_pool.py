"""Ranks for tests: one process that has imported their libraries forks them for every case.

`python -m tests.unit.trainer.pipeline.runtime.rank_pool` is that process: pickled cases on stdin, results on stdout.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.unit.trainer.pipeline.runtime import tiny_jobs

ROOT = Path(__file__).parents[5]
TIMEOUT_S = 120.0


class RankPool:
    """The process that ranks are forked from, as seen by a test."""

    def __init__(self) -> None:
        """Start it; the first case waits for its imports."""
        command = [sys.executable, "-m", "tests.unit.trainer.pipeline.runtime.rank_pool"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, case: tiny_jobs.Case) -> list[tiny_jobs.Result]:
        """Run a case on its ranks. Their errors are raised here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(case, self._process.stdin)
        self._process.stdin.flush()
        found: list[tiny_jobs.Result | str] = pickle.load(self._process.stdout)
        if errors := [one for one in found if isinstance(one, str)]:
            raise RuntimeError("\n".join(errors))
        return [one for one in found if not isinstance(one, str)]

    def close(self) -> None:
        self._process.communicate(timeout=10)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    context = multiprocessing.get_context("fork")
    while True:
        try:
            case = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # without the libraries' own goodbyes
        with tempfile.TemporaryDirectory() as folder:
            ranks = []
            for rank in range(case.ranks):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(theirs, rank, str(Path(folder) / "store"), case))
                process.start()
                theirs.close()
                ranks.append((process, ours))
            pickle.dump([_answer(process, ours) for process, ours in ranks], answers)
            answers.flush()


def _answer(process: Any, connection: Connection) -> Any:
    try:
        found = connection.recv() if connection.poll(TIMEOUT_S) else "a rank did not answer in time"
    except EOFError:
        found = "a rank ended without an answer"
    process.join(5)
    if process.is_alive():
        process.kill()
    return found


def _run(connection: Connection, rank: int, store: str, case: tiny_jobs.Case) -> None:
    try:
        connection.send(tiny_jobs.run_rank(rank, store, case))
    except Exception as error:
        connection.send(f"rank {rank}: {''.join(traceback.format_exception(error))}")


if __name__ == "__main__":
    _serve()
