"""A private RabbitMQ from the installed program: its own node, ports, data, log and port mapper."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scripts.stack.servers import HOST, Server, StackError, free_port
from shared.runtime.datadir import private_folder, write_private

HOW_TO_GET_IT = "apt-get install rabbitmq-server (or any RabbitMQ whose programs are on PATH)"
CONSUMER_TIMEOUT_S = 24 * 3600
"""Seconds that a task may stay unacknowledged: longer than the longest job. RabbitMQ's default is half an hour."""
_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def find() -> str | None:
    """Return the path of rabbitmq-server; None when there is none."""
    # Debian's program on PATH switches to another user, and that user cannot enter a private folder
    return str(_DEBIAN) if _DEBIAN.exists() else shutil.which("rabbitmq-server")


def start(folder: Path, host: str = HOST, *, api_port: int = 0) -> Server:
    """Start a node in `folder`, new or existing, with the user guest; StackError when that fails.

    api_port: of the management API; 0: without it.
    """
    return node(folder, host, api_port=api_port).start()


def node(folder: Path, host: str = HOST, name: str = "afterimage", more: str = "", api_port: int = 0) -> Server:
    """Return a node that is not started yet; StackError without RabbitMQ. more: lines of its rabbitmq.conf."""
    program = find()
    if program is None:
        raise StackError(f"rabbitmq: not installed; {HOW_TO_GET_IT}")
    folder, port = folder.absolute(), free_port()
    private_folder(folder)
    write_private(
        folder / "rabbitmq.conf",
        f"listeners.tcp.local = {host}:{port}\n"
        "loopback_users = none\n"  # guest may connect from every address that reaches `host`
        f"consumer_timeout = {CONSUMER_TIMEOUT_S * 1000}\n"
        "log.console = true\nlog.file = false\n"
        "raft.wal_max_size_bytes = 67108864\n"  # the default size is half a gigabyte
        + (f"management.tcp.ip = {host}\nmanagement.tcp.port = {api_port}\n" if api_port else "")
        + more,
    )
    write_private(folder / "plugins", "[rabbitmq_management].\n" if api_port else "[].\n")
    environment = _environment(folder, name)
    return Server(
        name="rabbitmq",
        url=f"amqp://guest:guest@{host}:{port}/",
        folder=folder,
        command=[program],
        environment=environment,
        ready=lambda: _answers(host, port),
        start_timeout_s=180.0,  # RabbitMQ loads a thousand modules: 4 s on an idle machine, half a minute on a busy one
        after_stop=lambda: tidy(environment),
    )


def _environment(folder: Path, name: str) -> dict[str, str]:
    return {
        "HOME": str(folder),  # the folder of Erlang's cookie
        "RABBITMQ_NODENAME": f"{name}@localhost",  # the data folder has this name; the port mapper is private
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": HOST,
        "RUNNING_UNDER_SYSTEMD": "true",  # the node replaces the shell and so receives signals
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }


def tidy(environment: Mapping[str, str]) -> None:
    """Stop Erlang's port mapper epmd, which outlives the node that started it."""
    program = shutil.which("epmd")
    if program is not None:
        subprocess.run(
            [program, "-kill"], env={**os.environ, **environment}, capture_output=True, timeout=10.0, check=False
        )


def _answers(host: str, port: int) -> bool:
    """Return whether the server answers AMQP's protocol header with a first frame."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            connection.settimeout(2.0)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False
