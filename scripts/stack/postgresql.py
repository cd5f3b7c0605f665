"""A private PostgreSQL from the installed programs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path

from scripts.stack.servers import HOST, Server, StackError, free_port, way_to
from shared.runtime.datadir import private_folder

HOW_TO_GET_IT = "apt-get install postgresql (or any PostgreSQL whose programs are on PATH)"
USER = "afterimage"


def find() -> str | None:
    """Return the folder of initdb and postgres, the newest version first; None when there is none."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -_version(path))
    return next((str(path) for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _version(programs: Path) -> int:
    name = programs.parent.name
    return int(name) if name.isdecimal() else 0


def start(folder: Path, host: str = HOST) -> Server:
    """Start a cluster in `folder`, new or existing, with the user `afterimage`; StackError when that fails."""
    programs = find()
    if programs is None:
        raise StackError(f"postgresql: not installed; {HOW_TO_GET_IT}")
    folder = folder.absolute()
    user = "postgres" if os.geteuid() == 0 else ""  # PostgreSQL refuses to run as root
    data, port = folder / "data", free_port()
    way_to(folder, user)
    private_folder(folder)
    if user:
        shutil.chown(folder, user, user)
    new = not (data / "PG_VERSION").exists()
    if new:
        _run([f"{programs}/initdb", "-D", str(data), "-U", USER, "--auth=trust", "-E", "UTF8", "--no-instructions"],
             user, folder)  # fmt: skip
        with (data / "pg_hba.conf").open("a") as allowed:
            allowed.write("host all all samenet trust\n")  # processes in the networks of `host`
    options = {
        "listen_addresses": host,
        "port": str(port),
        "unix_socket_directories": "",  # no Unix socket: its path would have to be short
        "max_connections": "200",
        "shared_buffers": "32MB",
    }
    server = Server(
        name="postgresql",
        url=f"postgresql+asyncpg://{USER}@{host}:{port}/postgres",
        folder=folder,
        command=[f"{programs}/postgres", "-D", str(data), *(f"-c{key}={value}" for key, value in options.items())],
        ready=lambda: _answers(host, port),
        user=user,
        tries=5,  # backends have sessions of their own and outlive a killed postmaster for a moment
        stop_signal=signal.SIGINT,  # "fast" shutdown; SIGTERM would wait until every client disconnects
    )
    return server.start()


def _run(command: list[str], user: str, folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        user=user or None,
        group=user or None,
        extra_groups=[] if user else None,
    )
    if done.returncode:
        raise StackError(f"postgresql: {Path(command[0]).name} failed in {folder}: {done.stderr.strip()[-500:]}")


def _answers(host: str, port: int) -> bool:
    """Return whether the server accepts logins: during its start it refuses the start-up packet."""
    body = struct.pack("!I", 196_608) + f"user\0{USER}\0database\0postgres\0\0".encode()
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            connection.sendall(struct.pack("!I", len(body) + 4) + body)
            return connection.recv(1) == b"R"
    except OSError:
        return False
