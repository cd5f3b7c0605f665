"""A process that is told to end while it still starts does so at once, and takes back what it had begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
from shared.service.process import main, serve

class First:
    name = "first"
    ports = frozenset()
    async def start(self, context): pass
    def register(self, server): return None
    async def drain(self): print("drained", flush=True)
    async def stop(self): print("stopped", flush=True)

class Second(First):
    name = "second"
    async def start(self, context):
        print("starting", flush=True)
        await asyncio.sleep(60)

import shared.service.process
shared.service.process.serve = lambda services, settings: serve([Second(), First()], settings)
main(Second)
"""
SERVERS = {
    "AFTERIMAGE_BUS_URL": "amqp://nobody@127.0.0.1:9/",
    "AFTERIMAGE_INDEX_URL": "weaviate://127.0.0.1:9",
    "AFTERIMAGE_CATALOG_URL": "postgresql+asyncpg://nobody@127.0.0.1:9/none",
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For the program's temporary files; not in `tmp_path`, where the name of its socket could become too long."""
    with tempfile.TemporaryDirectory(prefix="scratch-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_while_it_starts_it_ends_what_had_started(
    number: signal.Signals, tmp_path: Path, scratch: Path
) -> None:
    environment = {**os.environ, **SERVERS, "TMPDIR": str(scratch), "AFTERIMAGE_LISTEN": "127.0.0.1:0"}
    environment["AFTERIMAGE_METRICS_LISTEN"] = ""
    environment["AFTERIMAGE_DATA_DIR"] = str(tmp_path / "data")
    program = _starting(PROGRAM, environment)
    told_at = time.monotonic()
    program.send_signal(number)
    said, _ = program.communicate(timeout=30)
    assert time.monotonic() - told_at < 20.0
    assert program.returncode == 128 + number, said
    assert "Traceback" not in said
    assert ["drained" in said, "stopped" in said, "ended while starting" in said] == [True] * 3
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_twice_it_does_not_wait_for_what_loads_on_a_thread(
    number: signal.Signals, tmp_path: Path, scratch: Path
) -> None:
    environment = {**os.environ, **SERVERS, "TMPDIR": str(scratch), "AFTERIMAGE_LISTEN": "127.0.0.1:0"}
    environment["AFTERIMAGE_METRICS_LISTEN"] = ""
    environment["AFTERIMAGE_DATA_DIR"] = str(tmp_path / "data")
    loads = PROGRAM.replace("asyncio.sleep(60)", "asyncio.to_thread(__import__('time').sleep, 60)")
    program = _starting(loads, environment)
    try:
        program.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(2.0)
        program.send_signal(number)
        said, _ = program.communicate(timeout=10)
    finally:
        program.kill()
    assert program.returncode == -number, said


def _starting(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process whose second service begins to start."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    while "starting" not in (line := process.stdout.readline()):
        assert line, "it never came as far as that"
    return process


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--listen=0.0.0.0:1", os.EX_USAGE)])
def test_a_service_takes_no_arguments_and_says_so(argument: str, code: int) -> None:
    command = [sys.executable, "-m", "services.match_predictor", argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    said = done.stdout if code == 0 else done.stderr
    assert said.startswith("usage: python -m services.match_predictor\n\nDecides whether to look")
    assert "takes no arguments" in said


def test_a_bad_setting_is_one_line() -> None:
    command = [sys.executable, "-m", "services.match_predictor"]
    environment = {**os.environ, **SERVERS, "AFTERIMAGE_LEASE_S": "abc"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_CONFIG
    (line,) = done.stderr.splitlines()
    assert line.startswith("match_predictor: lease_s: Input should be a valid number")
    assert line.endswith("(got 'abc')")
