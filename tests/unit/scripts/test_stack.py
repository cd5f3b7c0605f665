"""A private server lives, dies and comes back where it was; a stack finds again exactly what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from scripts.stack import __main__ as command
from scripts.stack import postgresql, rabbitmq, seaweedfs, weaviate
from scripts.stack.__main__ import variables
from scripts.stack.servers import HOST, Server, StackError, answers, born_at, free_port
from scripts.stack.stack import ROOT, SERVICES, Stack, missing, variable
from shared.runtime.settings import Settings

STUBBORN = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def _server(folder: Path, program: list[str] | None = None, *, name: str = "web", **more: float) -> Server:
    port = free_port()
    command = program or [sys.executable, "-m", "http.server", "--bind", HOST]
    return Server(
        name=name,
        url=f"http://{HOST}:{port}",
        folder=folder,
        command=[*command, str(port)],
        ready=lambda: answers(f"http://{HOST}:{port}/"),
        **more,  # type: ignore[arg-type]  # start_timeout_s
    )


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got it may not listen yet, and random numbers come twice."""
    numbers = iter([31_000, 31_000, 41_000, 21_000, 32_000])
    monkeypatch.setattr("scripts.stack.servers.random.randint", lambda *_: next(numbers))
    monkeypatch.setattr("scripts.stack.servers._given", set())
    monkeypatch.setattr("scripts.stack.servers._reserve", lambda port: True)
    monkeypatch.setattr("scripts.stack.servers.socket.socket", NobodyListens)
    assert [free_port(), free_port()] == [31_000, 32_000]  # 41,000 and 21,000 would share one of theirs with 31,000


def test_a_port_is_given_to_one_process() -> None:
    """Whoever got it may not listen yet."""
    code = f"from scripts.stack.servers import _reserve; print(_reserve({free_port()}), _reserve(19_999))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert other.stdout.split() == ["False", "True"]


class NobodyListens:
    def __init__(self, *_: object) -> None: ...
    def __enter__(self) -> NobodyListens:
        return self

    def __exit__(self, *_: object) -> None: ...
    def bind(self, address: tuple[str, int]) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = _server(tmp_path)
    yield made
    made.stop()


def test_it_is_killed_and_starts_again_where_it_was(server: Server) -> None:
    first = server.start().pid
    server.kill()
    assert not server.alive
    assert server.returned == -signal.SIGKILL
    assert server.start().pid != first
    assert server.ready()
    server.stop()
    assert not server.alive
    server.stop()  # twice is fine


def test_one_that_ignores_the_request_to_end_is_made_to(tmp_path: Path) -> None:
    server = _server(tmp_path, [sys.executable, "-c", STUBBORN]).start()
    server.stop(timeout_s=0.3)
    assert not server.alive


def test_one_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"web ended while starting[^$]*no such thing"):
        _server(tmp_path, [sys.executable, "-c", "raise SystemExit('no such thing')"]).start()
    with pytest.raises(StackError, match=r"web to be ready: not within 0\.3 s"):
        _server(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"], start_timeout_s=0.3).start()


def test_what_the_last_life_still_holds_is_waited_for(tmp_path: Path) -> None:
    twice = f"import os, sys; os.path.exists('tried') or [open('tried', 'w'), sys.exit('still in use')]{STUBBORN}"
    server = _server(tmp_path, [sys.executable, "-c", twice], tries=2).start()
    assert server.ready()
    assert "still in use" in server.tail()
    server.kill()


def test_another_process_under_the_same_id_is_not_taken_for_it(server: Server) -> None:
    server.start()
    assert server.alive
    assert born_at(server.pid) == server.born
    found = Server("web", server.url, server.folder, (), server.ready, pid=server.pid, born="long ago")
    assert not found.alive
    found.stop()
    assert server.alive


def test_a_later_process_stops_exactly_what_was_started(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.processes = {name: _server(tmp_path, name=name).start() for name in ("weaviate", "gateway-1")}
    stack.save()
    found = Stack.load(tmp_path)
    assert found.names() == ["weaviate", "gateway-1"]
    assert found.names("gateway") == ["gateway-1"]
    assert found.gateways == [stack.processes["gateway-1"].url]
    found.stop()
    assert not any(server.alive for server in (*stack.processes.values(), *found.processes.values()))
    with pytest.raises(StackError, match="make stack-up"):
        Stack.load(tmp_path)
    stack.stop()


def test_what_the_command_line_needs_is_printed(tmp_path: Path) -> None:
    urls = {
        "catalog_url": "postgresql://a",
        "bus_url": "amqp://b",
        "blobs_url": "minio://c",
        "index_url": "weaviate://d",
    }
    stack = Stack(tmp_path, settings=urls)
    stack._addresses = {f"{name}-{at}": f"{HOST}:{name}{at}" for name in SERVICES for at in (1, 2)}
    said = dict(line.split("=", 1) for line in variables(stack))
    assert said["AFTERIMAGE_CACHE_MAINTAINER_ADDRESS"] == f"{HOST}:cache_maintainer1"
    assert said["AFTERIMAGE_GLOBAL_MONITOR_ADDRESS"] == f"{HOST}:global_monitor1"
    assert {said[variable(name)] for name in urls} == set(urls.values())


def test_services_of_a_stack_write_checkpoints_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody resumes what nobody wrote down."""
    monkeypatch.delenv("AFTERIMAGE_CHECKPOINT_EVERY_STEPS", raising=False)
    for name, value in Stack(tmp_path, settings={"bus_url": "amqp://there"}).environment.items():
        monkeypatch.setenv(name, value)
    assert Settings().checkpoint_every_steps == 10


def test_services_of_a_stack_without_a_gpu_all_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERIMAGE_DEVICE", raising=False)
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    assert Stack(tmp_path).environment.get("AFTERIMAGE_DEVICE") == (None if has_gpu else "cpu")
    assert Stack(tmp_path, settings={"device": "cuda:1"}).environment["AFTERIMAGE_DEVICE"] == "cuda:1"
    monkeypatch.setenv("AFTERIMAGE_DEVICE", "auto")
    assert Stack(tmp_path).environment["AFTERIMAGE_DEVICE"] == "auto"


def test_a_replica_whose_address_others_were_given_cannot_be_added_later(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="retriever"):
        Stack(tmp_path).add("retriever")


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgresql, rabbitmq, weaviate):
        monkeypatch.setattr(module, "find", lambda: None)
    monkeypatch.setattr(seaweedfs, "find", lambda: "/somewhere/weed")
    said = missing({"AFTERIMAGE_BUS_URL": "amqp://there"})
    assert [each.partition(":")[0] for each in said] == ["catalog_url", "index_url"]
    assert "apt-get install postgresql" in said[0]
    assert "AFTERIMAGE_CATALOG_URL" in said[0]


def test_the_command_says_it_before_anything_starts(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "scripts.stack", "up", "--folder", str(tmp_path / "stack")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_UNAVAILABLE
    assert "index_url: no weaviate here" in done.stderr
    assert not (tmp_path / "stack").exists()


HEALTHY = """
import os, grpc
from concurrent.futures import ThreadPoolExecutor
from grpc_health.v1 import health, health_pb2_grpc
server = grpc.server(ThreadPoolExecutor(1))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
assert server.add_insecure_port(os.environ["AFTERIMAGE_LISTEN"])
server.start()
print("lived with", os.environ["AFTERIMAGE_DEVICE"], flush=True)
server.wait_for_termination()
"""


class HealthyStack(Stack):
    made: ClassVar[list[Stack]] = []
    """To be stopped by the process that started their services."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.made.append(self)

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-c", HEALTHY]


def test_a_later_process_restarts_services_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings of the first start, one replica or all of a kind; the others stay as they are."""
    replicas = dict.fromkeys(SERVICES, 0) | {"gateway": 2, "retriever": 1}
    monkeypatch.setattr(command, "Stack", HealthyStack)
    stack = HealthyStack(tmp_path, replicas=replicas, settings={"device": "cpu"})
    stack.start_services()
    try:
        stack.save()
        first = {name: server.pid for name, server in stack.processes.items()}
        for wanted, restarted in (("gateway-2", {"gateway-2"}), ("gateway", {"gateway-1", "gateway-2"})):
            done = CliRunner().invoke(command.app, ["restart", wanted, "--folder", str(tmp_path)])
            assert done.exit_code == 0, done.output
            found = HealthyStack.load(tmp_path)
            assert {name for name, server in found.processes.items() if server.pid != first[name]} == restarted
            assert all(server.alive and server.ready() for server in found.processes.values())
            assert found.gateways == stack.gateways
            assert {server.start_timeout_s for server in found.processes.values()} == {180.0}  # models take a while
            first = {name: server.pid for name, server in found.processes.items()}
        assert found.processes["gateway-2"].log.read_text().count("lived with cpu") == 3
        with pytest.raises(StackError, match=r"no service 'gpu_worker'.*name one of retriever-1, gateway-1, gateway-2"):
            CliRunner().invoke(
                command.app, ["restart", "gpu_worker", "--folder", str(tmp_path)], catch_exceptions=False
            )
    finally:
        for made in HealthyStack.made:
            made.stop()
