"""All of Afterimage over real servers, every service its own process: anything is killed and started again by name."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scripts.stack.servers import HOST, PASSABLE, Server, StackError, free_port
from shared.runtime.datadir import OWNER_FOLDER, private_folder, write_private

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("embedder", "match_predictor", "retriever", "cache_maintainer", "global_monitor", "gpu_worker", "gateway")
"""In the order they are started in; the gateway last, since it opens the door."""
ASKED = ("embedder", "match_predictor", "retriever")
"""Those that others call: each caller is given all their addresses."""
STATE_FILE = "stack.json"
START_S, STOP_S = 180.0, 30.0
"""Longer than a service loads its models; longer than it drains."""


@dataclass(frozen=True)
class Port:
    """A setting that names a server, and the programs of scripts.stack that can stand behind it, best first."""

    setting: str
    programs: tuple[str, ...]


PORTS = (
    Port("catalog_url", ("postgresql",)),
    Port("bus_url", ("rabbitmq",)),
    Port("blobs_url", ("minio", "seaweedfs")),
    Port("index_url", ("weaviate",)),
)


def variable(setting: str) -> str:
    return f"AFTERIMAGE_{setting.upper()}"


def program_for(port: Port) -> str | None:
    """The first of its programs that is installed."""
    return next((name for name in port.programs if _module(name).find() is not None), None)


def missing(environment: Mapping[str, str]) -> list[str]:
    """What a stack cannot be started without and is not there, each with what to do about it."""
    said = []
    for port in PORTS:
        if not environment.get(variable(port.setting)) and program_for(port) is None:
            ways = "; or ".join(f"{name}: {_module(name).HOW_TO_GET_IT}" for name in port.programs)
            said.append(f"{port.setting}: no {' and no '.join(port.programs)} here. {ways}; "
                        f"or set {variable(port.setting)} to one that runs.")  # fmt: skip
    return said


class Stack:
    """Names are those of servers (`postgresql`) and replicas (`gpu_worker-2`, counted from 1)."""

    def __init__(self, folder: Path, *, replicas: Mapping[str, int] | None = None, settings: Mapping[str, Any] = {}):
        """settings: of every service, by their names in shared.runtime.settings; urls among them name servers that
        run."""
        self.folder = folder.absolute()
        self.processes: dict[str, Server] = {}
        self._replicas = dict.fromkeys(SERVICES, 1) | dict(replicas or {})
        self._settings = {variable(name): _text(value) for name, value in settings.items()}
        self._addresses: dict[str, str] = {}

    # ---- what there is ----

    @property
    def environment(self) -> dict[str, str]:
        """What every service is told: the caller's variables, then this stack's settings and URLs."""
        given = {name: value for name, value in os.environ.items() if name.startswith("AFTERIMAGE_")}
        urls = {
            variable(port.setting): self.processes[name].url
            for port in PORTS
            for name in port.programs
            if name in self.processes
        }
        asked = {variable(f"{service}_address"): ",".join(self._of(service)) for service in ASKED}
        # what a latent is compatible with follows the worker's device, which other services cannot see
        device = {} if any(Path("/dev").glob("nvidia[0-9]*")) else {variable("device"): "cpu"}
        return {**device, **given, **self._settings, **urls, **asked, "PYTHONPATH": _python_path()}

    @property
    def gateways(self) -> list[str]:
        return self._of("gateway")

    def address(self, name: str) -> str:
        return self._addresses[name]

    def names(self, service: str = "") -> list[str]:
        """Of all replicas of a service; of everything without one."""
        return [name for name in self.processes if not service or name.rpartition("-")[0] == service]

    def _of(self, service: str) -> list[str]:
        return [address for name, address in self._addresses.items() if name.rpartition("-")[0] == service]

    # ---- up and down ----

    def start(self, told: Callable[[str], None] = lambda _: None) -> Stack:
        """Servers, then services; whatever was started is stopped again when something is missing or fails."""
        if said := missing({**os.environ, **self._settings}):
            raise StackError("\n".join(said))
        # PostgreSQL works below it, as another user where we are root
        private_folder(self.folder, PASSABLE if os.geteuid() == 0 else OWNER_FOLDER)
        try:
            self.start_servers()
            told(", ".join(self.processes))
            self.start_services()
            told(", ".join(name for name in self.processes if "-" in name))
        except BaseException:
            self.stop()
            raise
        return self

    def start_servers(self) -> None:
        """All at once: each spends most of its start waiting."""
        known = {**os.environ, **self._settings}
        wanted = [name for port in PORTS if not known.get(variable(port.setting)) and (name := program_for(port))]
        with ThreadPoolExecutor(len(PORTS)) as pool:
            started = [pool.submit(_module(name).start, self.folder / name, self.host(name)) for name in wanted]
            for name, server in zip(wanted, started, strict=True):
                if server.exception() is None:
                    self.processes[name] = server.result()
        for server in started:
            server.result()  # raises what the first that failed raised

    def start_services(self) -> None:
        names = [f"{service}-{at + 1}" for service in SERVICES for at in range(self._replicas[service])]
        for name in names:
            self._addresses[name] = f"{self.host(name)}:{free_port()}"
        for name in names:
            self.processes[name] = self._service(name).launch()
        for name in names:
            self.processes[name].wait_ready()

    def add(self, service: str) -> str:
        """One more replica, of a service that nobody needs the address of; its name."""
        if service in ASKED:
            raise StackError(f"{service}: its callers were given their addresses when they started")
        name = f"{service}-{len(self.names(service)) + 1}"
        self._addresses[name] = f"{self.host(name)}:{free_port()}"
        self.processes[name] = self._service(name).start()
        return name

    def stop(self) -> None:
        """Services first, all at once and before what they need; then the servers."""
        services = [server for name, server in self.processes.items() if "-" in name]
        servers = [server for name, server in self.processes.items() if "-" not in name]
        for some in (services, servers):
            if some:
                with ThreadPoolExecutor(len(some)) as pool:
                    list(pool.map(lambda server: server.stop(timeout_s=STOP_S), some))
        (self.folder / STATE_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Stack:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- one by name ----

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].kill()

    def restart(self, name: str) -> None:
        """Starts it again where it was, on its data and ports, asking it to end first when it still runs."""
        self.processes[name].stop(timeout_s=STOP_S)
        self.processes[name].start()

    def host(self, name: str) -> str:
        """The address that it listens on; a subclass may put it elsewhere."""
        return HOST

    def command(self, name: str) -> list[str]:
        """What a replica runs; a subclass may run it through something else."""
        return [sys.executable, "-m", f"services.{name.rpartition('-')[0]}"]

    def _service(self, name: str) -> Server:
        address = self._addresses[name]
        own = {"AFTERIMAGE_LISTEN": address, "AFTERIMAGE_METRICS_LISTEN": f"{self.host(name)}:{free_port()}"}
        threads = max(1, (os.cpu_count() or 1) // max(1, self._replicas["gpu_worker"]))
        return Server(
            name=name,
            url=address,
            folder=self.folder / "services",
            command=self.command(name),
            ready=lambda: serving(address),
            environment={"AFTERIMAGE_TORCH_THREADS": str(threads), **self.environment, **own},
            start_timeout_s=START_S,
        )

    # ---- for a later process to find it ----

    def save(self) -> None:
        """Writes down what runs, so that `load` finds exactly that."""
        rows = [
            {
                "name": server.name,
                "url": server.url,
                "folder": str(server.folder),
                "pid": server.pid,
                "born": server.born,
                "stop_signal": int(server.stop_signal),
                "environment": dict(server.environment),
            }
            for server in self.processes.values()
        ]
        # its URLs hold passwords
        write_private(self.folder / STATE_FILE, json.dumps({"processes": rows}, indent=2))

    @classmethod
    def load(cls, folder: Path) -> Stack:
        """Find what `save` wrote down; StackError when nothing is. Its services can be restarted, its servers only
        stopped."""
        try:
            rows = json.loads((folder / STATE_FILE).read_text())["processes"]
        except FileNotFoundError:
            raise StackError(f"no stack was started in {folder}; start one with `make stack-up`") from None
        stack = cls(folder)
        for row in rows:
            stack.processes[row["name"]] = found = _found(row)
            if "-" in row["name"]:
                stack._addresses[row["name"]] = row["url"]
                found.command, found.ready = stack.command(row["name"]), partial(serving, row["url"])
                found.start_timeout_s = START_S
        return stack


def _found(row: Mapping[str, Any]) -> Server:
    tidy = getattr(_module(row["name"]), "tidy", None) if "-" not in row["name"] else None
    return Server(
        name=row["name"],
        url=row["url"],
        folder=Path(row["folder"]),
        command=(),
        ready=lambda: True,
        environment=row["environment"],
        stop_signal=row["stop_signal"],
        after_stop=None if tidy is None else lambda: tidy(row["environment"]),
        pid=row["pid"],
        born=row["born"],
    )


def serving(address: str, timeout_s: float = 1.0) -> bool:
    """Whether the gRPC health service there says SERVING."""
    with grpc.insecure_channel(address) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def resident_bytes(pid: int) -> int:
    """Memory of a process and its process group, shared pages counted once; 0 where /proc does not tell."""
    total = 0
    for group in Path("/proc").glob("[0-9]*"):
        try:
            if int((group / "stat").read_text().rpartition(")")[2].split()[2]) == pid:
                total += _pss((group / "smaps_rollup").read_text().splitlines())
        except (OSError, ValueError, IndexError):
            continue
    return total


def _pss(lines: Iterable[str]) -> int:
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _module(name: str) -> Any:
    return importlib.import_module(f"scripts.stack.{name}")


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
