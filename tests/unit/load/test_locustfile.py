"""The Locust users against a running service: they draw, and report where each picture started."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest

from shared.models.tiny import build

ROOT = Path(__file__).parents[3]


def test_users_play_their_sessions(tmp_path: Path) -> None:
    if find_spec("locust") is None:  # not imported here: it would patch this process's sockets
        pytest.skip("locust is in the extra [load]")
    build(tmp_path / "models")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    large = ["--large", "noop:?step_ms=0", "--encoder", str(tmp_path / "models" / "clip")]
    up = [sys.executable, "-m", "services", "up", "--listen", address, "--data-dir", str(tmp_path / "data"), *large]
    service = subprocess.Popen([*up, "--metrics-listen", ""], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
        played = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", "load/locustfile.py", "--headless", "-u", "3", "-r", "3", "-t",
                "10s", "--host", address, "--csv", str(tmp_path / "seen"), "--only-summary",
            ],
            cwd=ROOT,
            env={**os.environ, "AFTERIMAGE_LOAD_SPEED": "100000", "AFTERIMAGE_LOAD_STEPS": "10"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )  # fmt: skip
    finally:
        service.terminate()
        service.wait(timeout=60)
    assert played.returncode == 0, played.stderr[-2000:]
    with (tmp_path / "seen_stats.csv").open() as file:
        seen = {row["Name"]: row for row in csv.DictReader(file)}
    drawn = {name for name, row in seen.items() if name.startswith("from ") and int(row["Request Count"])}
    assert drawn, played.stderr[-2000:]
    assert int(seen["Aggregated"]["Failure Count"]) == 0
