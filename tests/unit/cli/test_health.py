"""Whether Afterimage serves, told apart by exit code: not there, starting, serving, something else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health as servicer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli import health
from tests.unit.cli.test_app import run


@pytest.fixture(autouse=True)
def _patient_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 0.5)


@pytest.fixture
def serving() -> Iterator[tuple[str, servicer.HealthServicer]]:
    server, answers = grpc.server(ThreadPoolExecutor(2)), servicer.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", answers
    server.stop(None).wait()


def test_a_port_that_is_taken_before_it_is_answered_is_a_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as starting:
        address = f"127.0.0.1:{starting.getsockname()[1]}"
        code, said = run(monkeypatch, capfd, "health", "--target", address)
    assert code == os.EX_TEMPFAIL
    assert f"{address}: takes connections" in said
    assert "still starting" in said
    assert "DEADLINE_EXCEEDED" not in said


def test_where_nothing_is_it_says_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, said = run(monkeypatch, capfd, "health", "--target", "127.0.0.1:1")
    assert (code, "start it with `afterimage up`" in said) == (os.EX_UNAVAILABLE, True)


def test_what_serves_and_what_drains(
    serving: tuple[str, servicer.HealthServicer], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    address, answers = serving
    answers.set("", health_pb2.HealthCheckResponse.SERVING)
    assert run(monkeypatch, capfd, "health", "--target", address)[0] == 0
    answers.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    code, said = run(monkeypatch, capfd, "health", "--target", address)
    assert (code, "shutting down" in said) == (os.EX_UNAVAILABLE, True)


def test_a_service_by_name_is_ready_or_not(
    serving: tuple[str, servicer.HealthServicer], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    address, answers = serving
    asked = ("health", "--target", address, "--service", "afterimage.gateway.v1.GatewayService")
    code, said = run(monkeypatch, capfd, *asked)
    assert (code, "no service called 'afterimage.gateway.v1.GatewayService'" in said) == (os.EX_UNAVAILABLE, True)
    answers.set("", health_pb2.HealthCheckResponse.SERVING)
    answers.set(asked[-1], health_pb2.HealthCheckResponse.NOT_SERVING)
    code, said = run(monkeypatch, capfd, *asked)
    assert (code, "that it needs is away" in said) == (os.EX_UNAVAILABLE, True)
    answers.set(asked[-1], health_pb2.HealthCheckResponse.SERVING)
    assert run(monkeypatch, capfd, *asked)[0] == 0


def test_a_server_without_health_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    code, said = run(monkeypatch, capfd, "health", "--target", f"127.0.0.1:{port}")
    server.stop(None).wait()
    assert (code, "not Afterimage answers" in said) == (os.EX_UNAVAILABLE, True)
