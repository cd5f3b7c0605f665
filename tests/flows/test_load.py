"""Locust's users against a running service, headless: they draw, they are told apart, and a full service loses none."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="module")
def address(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny random model in a process of its own: Locust patches the sockets of the one it runs in."""
    if find_spec("locust") is None:
        pytest.skip("locust is in the extra [load]")
    address, data = _free_address(), tmp_path_factory.mktemp("data")
    models = ["--large", str(tiny / "large"), "--encoder", str(tiny / "clip"), "--torch-threads", "1"]
    up = [sys.executable, "-m", "services", "up", "--listen", address, "--data-dir", str(data), "--metrics-listen", ""]
    limits = ["--max-rows", "2", "--max-queued", "4"]
    service = subprocess.Popen([*up, *models, *limits], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=LIMIT_S)
        yield address
    finally:
        service.terminate()
        service.wait(timeout=LIMIT_S)


def locust(
    folder: Path, address: str, until: str, *options: str
) -> tuple[dict[tuple[str, str], Any], list[dict[str, Any]], str]:
    """One headless run: rows of its statistics by (type, name), every call, and what it printed last. It ends when
    `until` of locust_until.py holds, at the latest after the time in `options`."""
    files = "load/locustfile.py,tests/flows/locust_until.py"
    command = [sys.executable, "-m", "locust", "-f", files, "--headless", "--host", address]
    kept = ["--only-summary", "--csv", str(folder / "seen"), "--record", str(folder / "calls.jsonl")]
    done = subprocess.run(
        [*command, *kept, *options], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"LOCUST_UNTIL": until},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    with (folder / "seen_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    return rows, calls, done.stdout


def count(rows: dict[tuple[str, str], Any], kinds: Sequence[str]) -> int:
    return sum(int(row["Request Count"]) for (kind, _), row in rows.items() if kind in kinds)


def test_users_play_their_sessions(tmp_path: Path, address: str) -> None:
    options = ["-u", "3", "-r", "3", "-t", "60s", "--speed", "100000", "--steps", "10"]
    rows, calls, printed = locust(tmp_path, address, "a_generated_image", *options)
    drawn = count(rows, ("hit", "miss", "exact"))
    assert 0 < drawn <= len(calls)  # those that were in flight when Locust stopped are not in its statistics
    assert {name for kind, name in rows if kind == "miss"} == {"from noise"}
    assert int(rows[("", "Aggregated")]["Failure Count"]) == 0
    said = re.search(r"images: (\d+) in", printed)
    assert said is not None
    assert (
        drawn <= int(said[1]) <= len(calls)
    )  # a picture may come while Locust writes its statistics for the last time


def test_an_open_loop_asks_at_its_times_and_the_full_service_says_when_to_come_back(
    tmp_path: Path, address: str
) -> None:
    options = ["-t", "60s", "--arrivals", "poisson:60", "--steps", "10", "--cache", "off"]
    rows, calls, _ = locust(tmp_path, address, "an_image_and_a_refusal", *options)
    refused = [call for call in calls if call["name"] == "RESOURCE_EXHAUSTED"]
    assert refused
    assert all(call["delay_s"] > 0 for call in refused)
    assert count(rows, ("miss",)) > 0
    assert {kind for kind, name in rows if name.startswith("from ")} == {"miss"}
    assert 0 < int(rows[("failed", "RESOURCE_EXHAUSTED")]["Failure Count"]) <= len(refused)
    assert all(call["late_s"] > -0.01 for call in calls)


def test_who_is_refused_comes_back_and_is_drawn(tmp_path: Path, address: str) -> None:
    """Ten users of a service that lets six in; who is refused is told to come back within ten seconds."""
    options = ["-u", "10", "-r", "10", "-t", "60s", "--speed", "100000", "--steps", "5", "--cache", "off"]
    rows, calls, _ = locust(tmp_path, address, "a_client_that_came_back", *options)
    refused = {call["key"] for call in calls if call["name"] == "RESOURCE_EXHAUSTED"}
    assert refused & {call["key"] for call in calls if call["kind"] == "miss"}
    assert {name for kind, name in rows if kind == "failed"} == {"RESOURCE_EXHAUSTED"}


def test_arrivals_that_are_none_are_refused_before_anything_starts(tmp_path: Path) -> None:
    if find_spec("locust") is None:
        pytest.skip("locust is in the extra [load]")
    command = [sys.executable, "-m", "locust", "-f", "load/locustfile.py", "--headless", "--arrivals", "poisson:fast"]
    done = subprocess.run([*command, "-t", "1s"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert "poisson:RATE" in done.stderr
