"""Programs, processor time and metrics of the processes that a benchmark starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from scripts.stack.servers import HOST, Server, free_port
from scripts.stack.stack import Stack, serving

ROOT = Path(__file__).resolve().parents[2]
Counted = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""A metrics page: (sample, labels) → value."""


def servers_on_path() -> None:
    """Add the servers installed for this repository to PATH, as `make` does."""
    if (ROOT / "out" / "servers").is_dir():
        os.environ["PATH"] = f"{ROOT / 'out' / 'servers'}{os.pathsep}{os.environ['PATH']}"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder that PostgreSQL's own user can read when this process runs as root. SIGTERM ends the
    block as Ctrl-C does: else the servers in the folder would run on without their benchmark."""
    folder = Path(tempfile.mkdtemp(prefix="afterimage-bench-"))
    folder.chmod(0o755)
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, former)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def one_process(settings: Mapping[str, Any], folder: Path, program: Sequence[str] = ("services",)) -> Iterator[Server]:
    """Run `afterimage up` with these settings in a process of its own; its data and log are in the folder.

    program: a module that runs `afterimage`, and what it needs before `up`.
    """
    address = f"{HOST}:{free_port()}"
    given = {"listen": address, "data_dir": folder / "data", "metrics_listen": "", **settings}
    server = Server(
        name="afterimage",
        url=address,
        folder=folder,
        command=[sys.executable, "-m", *program, "up"],
        ready=lambda: serving(address),
        environment={f"AFTERIMAGE_{name.upper()}": str(value) for name, value in given.items()}
        | {"PYTHONPATH": str(ROOT)},
        start_timeout_s=300.0,
    ).start()
    try:
        yield server
    finally:
        server.stop(60.0)


def issue_key(folder: Path, subject: str, tenant: str, roles: Iterable[str] = ("user",)) -> str:
    """Create an API key in the catalog of the process that `one_process` started in this folder; return its text."""
    environment = {**os.environ, "AFTERIMAGE_DATA_DIR": str(folder / "data"), "PYTHONPATH": str(ROOT)}
    given = [part for role in roles for part in ("--role", str(role))]
    command = [sys.executable, "-m", "services", "keys", "create", subject, "--tenant", tenant, *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def resident_mib(pid: int, *, most: bool = False) -> int:
    """Return the resident memory of a process in MiB, or the most it ever was; 0 if it cannot be read."""
    field = "VmHWM:" if most else "VmRSS:"
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith(field)), 0)


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the processor seconds of each process with its descendants; empty without /proc."""
    own, children = _processes()

    def total(pid: int) -> float:
        return own.get(pid, 0.0) + sum(total(child) for child in children[pid])

    return {name: total(pid) for name, pid in pids.items()} if own else {}


def cpu_of(stack: Stack) -> dict[str, float]:
    """Return `cpu_seconds` of every process in a stack, by name."""
    return cpu_seconds({name: server.pid for name, server in stack.processes.items()})


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in after}


def _processes() -> tuple[dict[int, float], dict[int, list[int]]]:
    """Return processor seconds by process id, ended children included, and each process's children."""
    seconds, children = dict[int, float](), defaultdict[int, list[int]](list)
    for found in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = found.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(found.parent.name)
        seconds[pid] = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        children[int(fields[1])].append(pid)
    return seconds, children


def counted(stack: Stack, name: str) -> Counted:
    """Read a service's metrics page."""
    at = stack.processes[name].environment["AFTERIMAGE_METRICS_LISTEN"]
    with urllib.request.urlopen(f"http://{at}/metrics", timeout=10.0) as reply:
        page = reply.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def grown(before: Counted, after: Counted, name: str, **labels: str) -> float:
    """Return the total growth of the samples with this name and these labels."""
    return sum(
        value - before.get((sample, own), 0.0)
        for (sample, own), value in after.items()
        if sample == name and labels.items() <= dict(own).items()
    )
