"""One server as a private process: start on a port of its own, wait until ready, stop by process id."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from shared.runtime.datadir import OTHERS, OWNER_FILE, OWNER_FOLDER, private_file, private_folder, private_opener

HOST = "127.0.0.1"
MAX_PORT = 32_000
"""Largest port: higher ones serve outgoing connections, which could take the port of a stopped service."""


PASSABLE = 0o711
"""Mode of the folders above a folder of another user."""


def way_to(folder: Path, user: str = "") -> None:
    """Make the folders above this one: private, but passable if a server runs below as another user."""
    private_folder(folder.parent, PASSABLE if user else OWNER_FOLDER, tighten=False)


class StackError(Exception):
    """A server is missing, does not start, or does not stop; the message says what to do."""


_given: set[int] = set()
"""Ports that this process handed out; their users may not listen yet."""


def free_port(*, below: int = MAX_PORT) -> int:
    """Return a port of 127.0.0.1 that is free now, as is port + 10000.

    Each call returns another port, and no other process gets the same one while this process runs.
    """
    for _ in range(200):
        port = random.randint(20_000, below)
        if not _given.isdisjoint((port, port + 10_000)) or not (_reserve(port) and _reserve(port + 10_000)):
            continue
        with contextlib.ExitStack() as opened:
            try:
                for number in (port, port + 10_000):
                    probe = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                    probe.bind((HOST, number))
            except OSError:
                continue
            _given.update((port, port + 10_000))
            return port
    raise StackError(f"no free port between 20000 and {below}; stop processes that use them")


def _reserve(port: int) -> bool:
    """Lock the port's byte of a file that all processes of this user share; the kernel unlocks it when they end."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _reservations() -> int:
    """Open the file of the locks; closing any descriptor of it would unlock all ports of this process."""
    path = Path(tempfile.gettempdir()) / f"afterimage-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, OWNER_FILE)


def wait_until(check: Callable[[], bool], timeout_s: float, what: str, *, every_s: float = 0.05) -> None:
    """Wait until `check()` is true; StackError with `what` when that takes longer than `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            raise StackError(f"{what}: not within {timeout_s:g} s")
        time.sleep(every_s)


def answers(url: str, *, status: int = 200) -> bool:
    """Return whether an HTTP GET gets this status."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return bool(reply.status == status)
    except urllib.error.HTTPError as error:
        return error.code == status
    except OSError:
        return False


def listens(port: int, host: str = HOST) -> bool:
    """Return whether a process accepts connections on this port."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def born_at(pid: int) -> str:
    """Return the start time of a process, which distinguishes two processes with one id; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if stat[0] == "Z" else stat[19]
    except OSError:
        if Path("/proc/self").exists():
            return ""
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@dataclass
class Server:
    """A program on private ports, with its data and log in `folder`; it can be killed and started again there.

    `ready` is called until it returns True. `after_stop` stops processes that the program left running.
    """

    name: str
    url: str
    folder: Path
    command: Sequence[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """User of the process when we are root; empty: the current user."""
    stop_signal: int = signal.SIGTERM
    start_timeout_s: float = 60.0
    tries: int = 1
    """Number of tries to start: after a kill, a leftover process may still hold resources."""
    after_stop: Callable[[], None] | None = None
    pid: int = 0
    born: str = ""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # reaps an ended process
        return bool(self.pid) and born_at(self.pid) == self.born != ""

    @property
    def returned(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs, and if another process started it."""
        return None if self._process is None else self._process.poll()

    def launch(self) -> Server:
        """Start the process in a process group of its own, without waiting until it is ready."""
        private_folder(self.folder)
        with open(self.log, "ab", opener=private_opener) as log:
            private_file(self.log)
            self._process = self.spawn(log)
        self.pid = self._process.pid
        self.born = born_at(self.pid)
        return self

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Return the process of the command; a subclass may start it in another way."""
        return subprocess.Popen(
            list(self.command),
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=OTHERS,  # files of the process are private to its user
            user=self.user or None,
            group=self.user or None,
            extra_groups=[] if self.user else None,
        )

    def wait_ready(self) -> Server:
        """Wait until ready; StackError with the end of the log when the process ends or exceeds `start_timeout_s`."""
        try:
            wait_until(lambda: not self.alive or self.ready(), self.start_timeout_s, f"{self.name} to be ready")
            if not self.alive:
                raise StackError(f"{self.name} ended while starting")
        except StackError as error:
            self.kill()
            raise StackError(f"{error}; its log {self.log} ends:\n{self.tail()}") from None
        return self

    def start(self) -> Server:
        """Start the process and wait until it is ready; after `kill` or `stop`, with the same data and ports."""
        for _ in range(self.tries - 1):
            with contextlib.suppress(StackError):
                return self.launch().wait_ready()
            time.sleep(0.5)
        return self.launch().wait_ready()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Send the stop signal, and kill the process if it does not end within `timeout_s`."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, self.stop_signal)
            with contextlib.suppress(StackError):
                wait_until(lambda: not self.alive, timeout_s, f"{self.name} to stop")
        self.kill()
        if self.after_stop is not None:
            self.after_stop()

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        if self._process is not None or self.alive:
            _signal_group(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        else:
            wait_until(lambda: not self.alive, 10.0, f"{self.name} to die")

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""
