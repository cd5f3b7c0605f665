"""One server as a private process: started on a port of its own, waited for, stopped by its process id."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.runtime.datadir import OTHERS, OWNER_FOLDER, private_file, private_folder, private_opener

HOST = "127.0.0.1"
MAX_PORT = 32_000
"""Above begin the ports of outgoing connections: one of them could take the port of a service that is away."""


PASSABLE = 0o711
"""Mode of folders above one that another user works in."""


def way_to(folder: Path, user: str = "") -> None:
    """Make the folders above this one: for us alone, and passable where a server runs as another user below."""
    private_folder(folder.parent, PASSABLE if user else OWNER_FOLDER, tighten=False)


class StackError(Exception):
    """A server is missing, does not start or does not stop; the message says what to do."""


_given: set[int] = set()
"""Ports that this process handed out: whoever asked may not listen yet."""


def free_port(*, below: int = MAX_PORT) -> int:
    """A port of 127.0.0.1 on which nobody listens now, and nobody on port + 10000 either; another at every call."""
    for _ in range(200):
        port = random.randint(20_000, below)
        if not _given.isdisjoint((port, port + 10_000)):
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
    raise StackError(f"no free port found between 20000 and {below}")


def wait_until(check: Callable[[], bool], timeout_s: float, what: str, *, every_s: float = 0.05) -> None:
    """Returns when `check()` is true; StackError naming `what` when it is not within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            raise StackError(f"{what}: not within {timeout_s:g} s")
        time.sleep(every_s)


def answers(url: str, *, status: int = 200) -> bool:
    """Whether an HTTP GET is answered with this status."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return bool(reply.status == status)
    except urllib.error.HTTPError as error:
        return error.code == status
    except OSError:
        return False


def listens(port: int, host: str = HOST) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def born_at(pid: int) -> str:
    """What tells this process from a later one under the same id; empty when there is none (or only its zombie)."""
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
    """A program on private ports with its data and its log in `folder`; it can be killed and started again there.

    `ready` is asked until it says yes; `after_stop` cleans up what the program left running beside itself.
    """

    name: str
    url: str
    folder: Path
    command: Sequence[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """Whom to run it as when we are root; empty: as we are."""
    stop_signal: int = signal.SIGTERM
    start_timeout_s: float = 60.0
    tries: int = 1
    """Starts before giving up: after a kill something of the last life may still hold what it needs."""
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
            self._process.poll()  # reaps it when it has ended
        return bool(self.pid) and born_at(self.pid) == self.born != ""

    @property
    def returned(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, and for what another process started."""
        return None if self._process is None else self._process.poll()

    def launch(self) -> Server:
        """Starts the process, in a process group of its own, without waiting for it to be ready."""
        private_folder(self.folder)
        with open(self.log, "ab", opener=private_opener) as log:
            private_file(self.log)
            self._process = subprocess.Popen(
                list(self.command),
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=OTHERS,  # whatever it writes is its user's alone
                user=self.user or None,
                group=self.user or None,
                extra_groups=[] if self.user else None,
            )
        self.pid = self._process.pid
        self.born = born_at(self.pid)
        return self

    def wait_ready(self) -> Server:
        """StackError with the end of its log when it dies or takes longer than `start_timeout_s`."""
        try:
            wait_until(lambda: not self.alive or self.ready(), self.start_timeout_s, f"{self.name} to be ready")
            if not self.alive:
                raise StackError(f"{self.name} ended while starting")
        except StackError as error:
            self.kill()
            raise StackError(f"{error}; its log {self.log} ends:\n{self.tail()}") from None
        return self

    def start(self) -> Server:
        """Starts it and waits until it is ready; after `kill` or `stop` it starts again on its data and ports."""
        for _ in range(self.tries - 1):
            with contextlib.suppress(StackError):
                return self.launch().wait_ready()
            time.sleep(0.5)
        return self.launch().wait_ready()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Asks it to end, and makes it when it does not within `timeout_s`."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, self.stop_signal)
            with contextlib.suppress(StackError):
                wait_until(lambda: not self.alive, timeout_s, f"{self.name} to stop")
        self.kill()
        if self.after_stop is not None:
            self.after_stop()

    def kill(self) -> None:
        """SIGKILL for it and everything in its process group."""
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
