"""Which servers tests may use: a URL in the environment, else a private server of this session, else a skip."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from scripts.stack.servers import Server, StackError

REQUIRED = frozenset(filter(None, os.environ.get("AFTERIMAGE_TEST_REQUIRE", "").replace(",", " ").split()))
"""Servers that must be there: names as in `url_of`, separated by commas or spaces."""


def url_of(name: str) -> str:
    """AFTERIMAGE_TEST_<NAME>_URL, or the URL of a server of this session's own, started when first asked for.

    Names are modules of scripts.stack (postgresql, rabbitmq, seaweedfs, minio, weaviate). A server that is not
    installed skips the test, or fails it when AFTERIMAGE_TEST_REQUIRE names it.
    """
    url, missing = _found(name)
    if missing:
        (pytest.fail if name in REQUIRED else pytest.skip)(missing)
    return url


def server_of(name: str) -> Server:
    """This session's own server, to be killed and started again; skips (or fails) like `url_of`."""
    url_of(name)
    if name not in _STARTED:
        pytest.skip(f"{name} is not ours to restart: it was given by {_variable(name)}")
    return _STARTED[name]


_STARTED: dict[str, Server] = {}


def _variable(name: str) -> str:
    return f"AFTERIMAGE_TEST_{name.upper()}_URL"


@cache
def _found(name: str) -> tuple[str, str]:
    """(URL, what is missing)."""
    if url := os.environ.get(_variable(name), ""):
        return url, ""
    program = importlib.import_module(f"scripts.stack.{name}")
    if program.find() is None:
        return "", f"no {name}: {program.HOW_TO_GET_IT}; or set {_variable(name)}"
    try:
        _STARTED[name] = program.start(folder() / name)
    except StackError as error:
        return "", f"{name} does not start: {error}"
    return _STARTED[name].url, ""


@cache
def folder() -> Path:
    """For servers of this session, gone at its end; readable by whom a server runs as when the tests are root's."""
    made = Path(tempfile.mkdtemp(prefix="afterimage-servers-"))
    made.chmod(0o755)
    atexit.register(_stop_all, os.getpid(), made)
    return made


def _stop_all(owner: int, made: Path) -> None:
    if os.getpid() != owner:
        return  # a forked child
    for server in filter(lambda one: one.alive, _STARTED.values()):  # all at once: it is what the end waits for
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, server.stop_signal)
    for server in _STARTED.values():
        server.stop(timeout_s=1.0 if server.name == "seaweedfs" else 5.0)  # its filer waits 15 s for itself
    shutil.rmtree(made, ignore_errors=True)
