"""Runs of `afterimage train run` whose ranks are forked, for tests."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from services.trainer.finetuning.saving.run_folder import RunFolder
from tests.forking import Fork, shared_parent

LIMIT_S = 240.0
"""Longest run of a test; it takes a few seconds alone on a core."""
JOB = """
model = "{base}"
out = "out"
iterations = {iterations}
batch = 4
self_conditioning = 0.5
[data]
path = "{photos}"
resolution = 32
[optimizer]
rate = 1e-3
warmup = 2
[validation]
every = 4
samples_every = 8
prompts = ["a square"]
steps = 2
[checkpoints]
every = 2
keep = 2
[ranks]
timeout_s = {timeout_s}
"""


class Run:
    """A run in a folder of its own, started in processes that are forked."""

    def __init__(self, folder: Path, base: Path, photos: Path, iterations: int = 8, timeout_s: float = 60) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.files = folder, RunFolder(folder / "out")
        self.job = folder / "job.toml"
        self._keys = {"base": base, "photos": photos}
        self.write(iterations, timeout_s)

    def write(self, iterations: int = 8, timeout_s: float = 60) -> None:
        self.job.write_text(JOB.format(**self._keys, iterations=iterations, timeout_s=timeout_s))

    def start(self, world: int = 1, jobs: Sequence[Path] = ()) -> list[Fork]:
        """Start the command on every rank, with the variables that torchrun sets; `jobs`: each rank's own file, in
        whose folder the rank works."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(world):
            log = self.folder / f"{rank}.log"
            log.touch()
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
            environment = os.environ | {name: str(value) for name, value in place.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "AFTERIMAGE_DEVICE": "cpu"}
            arguments = ["train", "run", str(jobs[rank] if jobs else self.job)]
            how = {
                "cwd": str(jobs[rank].parent if jobs else self.folder),
                "log": str(log),
                "environment": environment,
                "arguments": arguments,
            }
            ranks.append(Fork(shared_parent(), "services", **how))
        return ranks

    def finish(self, world: int = 1) -> str:
        """Run to the end and return what the first rank said."""
        codes = [ended(one) for one in self.start(world)]
        said = (self.folder / "0.log").read_text()
        assert codes == [0] * world, said
        return said

    def losses(self) -> dict[int, float]:
        return {row["iteration"]: row["loss"] for row in self.files.rows() if "loss" in row}

    def reached(self, iteration: int) -> None:
        until(lambda: max(self.losses(), default=0) >= iteration)


def ended(one: Fork) -> int:
    until(lambda: one.poll() is not None)
    code = one.poll()
    assert code is not None
    return code


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def first_line(run: Run) -> str:
    return next(line for line in (run.folder / "0.log").read_text().splitlines() if line.startswith("afterimage: "))
