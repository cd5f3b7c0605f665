"""Folders, logs and passwords of a stack are its user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.stack import rabbitmq, seaweedfs
from scripts.stack.servers import HOST, PASSABLE, Server, way_to
from scripts.stack.stack import ROOT, STATE_FILE, Stack

WRITES = """
import os, time
os.makedirs("data")
open("data/file", "w").write("x")
open("ready", "w").close()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def writer(folder: Path) -> Server:
    """A program that writes files, and says when it has."""
    ready = folder / "ready"
    return Server("weaviate", f"http://{HOST}:1", folder, [sys.executable, "-c", WRITES], ready.exists)


def test_what_a_server_writes_and_logs_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "stack" / "weaviate"
    folder.mkdir(parents=True)  # by the version before
    folder.chmod(0o755)
    (folder / "weaviate.log").touch(mode=0o644)
    server = writer(folder).start()
    server.kill()
    found = {path.name: mode(path) for path in (folder, *folder.rglob("*"))}
    assert found == {"weaviate": 0o700, "weaviate.log": 0o600, "data": 0o700, "file": 0o600, "ready": 0o600}


def test_the_state_of_a_stack_is_its_users_alone(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).touch(mode=0o644)
    Stack(tmp_path).save()
    assert mode(tmp_path / STATE_FILE) == 0o600


def test_the_folder_of_a_stack_is_passable_only_where_another_user_works_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {}
    for user in (0, 1000):
        folder = tmp_path / str(user) / "stack"
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr("scripts.stack.stack.missing", lambda _: [])
        monkeypatch.setattr(Stack, "start_servers", lambda _: None)
        monkeypatch.setattr(Stack, "start_services", lambda _: None)
        Stack(folder).start()
        modes[user] = mode(folder)
    assert modes == {0: PASSABLE, 1000: 0o700}
    way_to(tmp_path / "a" / "postgresql", "postgres")
    assert mode(tmp_path / "a") == PASSABLE


def test_what_the_servers_are_configured_with_is_their_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "start", lambda server: server)
    for program in (seaweedfs, rabbitmq):
        monkeypatch.setattr(program, "find", lambda: "/bin/true")
        program.start(tmp_path / program.__name__)
    found = {path.name: mode(path) for path in tmp_path.glob("*/*") if path.is_file()}
    assert found == {"s3.json": 0o600, "rabbitmq.conf": 0o600, "plugins": 0o600}
    assert {mode(path) for path in tmp_path.iterdir()} == {0o700}


@pytest.mark.parametrize("there", [False, True])
def test_compose_secrets_are_their_users_alone(tmp_path: Path, there: bool) -> None:
    file = tmp_path / ".env"
    if there:
        file.write_text("POSTGRES_PASSWORD=mine\n")
        file.chmod(0o644)
    subprocess.run([str(ROOT / "compose/secrets.sh"), str(file)], check=True, capture_output=True)
    assert mode(file) == 0o600
    assert ("mine" in file.read_text()) is there
