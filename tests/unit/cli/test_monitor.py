"""`afterimage monitor --once`: whom it asks, and what it says when there is nothing to show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from rich.console import Console

from protos import global_monitor_pb2 as pb
from protos.global_monitor_pb2_grpc import (
    GlobalMonitorServiceServicer,
    add_GlobalMonitorServiceServicer_to_server,
)
from services.cli.display.tables import WIDE
from services.cli.monitor import shown
from tests.unit.cli.test_app import run


class Ending(GlobalMonitorServiceServicer):
    """A monitor that shuts down before it has said anything."""

    def Allocation(self, request: pb.AllocationRequest, context: Any) -> Iterator[pb.AllocationResponse]:  # noqa: N802  # gRPC's
        return iter(())


def test_a_monitor_that_shuts_down_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_GlobalMonitorServiceServicer_to_server(Ending(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        named = run(monkeypatch, capfd, "monitor", "--once", "--target", address)
        monkeypatch.setenv("AFTERIMAGE_GLOBAL_MONITOR_ADDRESS", address)
        set_so = run(monkeypatch, capfd, "monitor", "--once")
    finally:
        server.stop(None).wait()
    assert named == set_so
    assert named == (
        os.EX_UNAVAILABLE,
        f"asking {address}\nafterimage: {address}: the monitor is shutting down; try again in a few seconds\n",
    )


def test_where_no_monitor_is_it_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, said = run(monkeypatch, capfd, "monitor", "--once", "--target", "127.0.0.1:1")
    assert (code, "nothing listens on 127.0.0.1:1" in said) == (os.EX_UNAVAILABLE, True)


def test_in_a_pipe_no_line_is_longer_than_what_it_says() -> None:
    console = Console(width=WIDE, force_terminal=False)
    answer = pb.AllocationResponse(mode="throughput", set_mode="throughput", period_s=180, why="the first period")
    with console.capture() as text:
        console.print(shown(answer))
    assert "mode throughput, every 180 s" in text.get()
    assert max(map(len, text.get().splitlines())) < 120


def test_deadlines_are_shown_once_there_are_some() -> None:
    def said(answer: pb.AllocationResponse) -> str:
        console = Console(width=WIDE, force_terminal=False)
        with console.capture() as text:
            console.print(shown(answer))
        return text.get()

    assert "deadlines" not in said(pb.AllocationResponse())
    assert "deadlines met lately: 57 of 60 (95%)" in said(pb.AllocationResponse(deadlines=60, deadlines_met=57))
