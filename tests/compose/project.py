"""The Docker stack as a project of its own: its name, ports, passwords and volumes collide with nobody's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.stack.servers import HOST

ROOT = Path(__file__).resolve().parents[2]
BUILD_S, UP_S, DOWN_S, COMMAND_S = 1500.0, 600.0, 240.0, 120.0
"""Limits of commands on a machine that is busy with something else, too."""
TAG = "test"


class Compose:
    """`docker compose` with these files; every command ends within its limit and shows what it said when it fails."""

    def __init__(
        self,
        folder: Path,
        files: tuple[str, ...],
        settings: Mapping[str, Any],
        *,
        gateways: int = 1,
        passwords: bool = True,
        folders: Mapping[str, Path] = {},
    ) -> None:
        """settings: of all services, by their names in shared.runtime.settings; folders: by their variables."""
        self.name = f"afterimage-test-{os.getpid()}-{folder.name}".lower()
        self._files = [part for file in files for part in ("-f", str(ROOT / "compose" / file))]
        self._env, knobs = folder / "env", folder / "settings.env"
        if passwords:
            run([str(ROOT / "compose/secrets.sh"), str(self._env)])
        both = free_ports(2 * gateways)
        self.ports, self.http_ports = both[:gateways], both[gateways:]
        with self._env.open("a") as env:
            env.write(
                f"SETTINGS_FILE={knobs}\nIMAGE_TAG={TAG}\nGATEWAY_PORTS={self.ports[0]}-{self.ports[-1]}\n"
                f"HTTP_PORTS={self.http_ports[0]}-{self.http_ports[-1]}\nMETRICS_PORT=0\n"
            )
            env.writelines(f"{name}={path}\n" for name, path in folders.items())
        knobs.write_text("".join(f"AFTERIMAGE_{name.upper()}={value}\n" for name, value in settings.items()))

    def __call__(self, *command: str, limit_s: float = COMMAND_S) -> str:
        """stdout of one command; AssertionError with what it said when it fails or takes longer."""
        env_file = ["--env-file", str(self._env)]
        return run(["docker", "compose", "-p", self.name, *env_file, *self._files, *command], limit_s)

    def up(self, *more: str) -> float:
        """Everything, until all of it is healthy; the seconds that took."""
        begun = time.monotonic()
        try:
            self("up", "-d", "--pull", "never", "--no-build", "--wait", "--wait-timeout", f"{UP_S:.0f}", *more,
                 limit_s=UP_S + 60.0)  # fmt: skip
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self('ps', '-a')}\n{self('logs', '--tail', '15')}") from None
        return time.monotonic() - begun

    def add(self, file: str) -> None:
        """Use one more file from now on."""
        self._files += ["-f", str(ROOT / "compose" / file)]

    def down(self, *more: str) -> None:
        self("down", *more, limit_s=DOWN_S)

    def containers(self, service: str = "") -> list[str]:
        """Ids of what runs, of one service or of all, oldest first."""
        return self("ps", "-q", *filter(None, [service])).split()

    def targets(self) -> list[str]:
        """Where each gateway is reached, host:port."""
        count = len(self.containers("gateway"))
        return [self("port", "--index", str(at + 1), "gateway", "50051").strip() for at in range(count)]


def run(command: list[str], limit_s: float = COMMAND_S) -> str:
    """stdout; AssertionError with what was said when it fails or takes longer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{' '.join(command)} took longer than {limit_s:.0f} s: {error.stderr!r}") from None
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"[-4000:]
        raise AssertionError(f"{' '.join(command)} ended with code {done.returncode}:\n{said}")
    return done.stdout


def inspect(container: str) -> Any:
    return json.loads(run(["docker", "inspect", container]))[0]


def engine() -> str:
    """What is missing of `docker compose` with an engine that answers; empty when nothing is."""
    try:
        run(["docker", "compose", "version"], 30.0)
        run(["docker", "info"], 30.0)
    except (OSError, AssertionError) as error:
        return f"no Docker engine with Compose answers: {str(error)[:200]}"
    return ""


def free_ports(count: int) -> list[int]:
    """So many free ports in a row: a published range must be one."""
    for start in range(20_000 + os.getpid() % 5000, 30_000):
        ports = list(range(start, start + count))
        if all(map(_free, ports)):
            return ports
    raise AssertionError(f"no {count} free ports in a row from 20000 to 30000")


def _free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
        return True
