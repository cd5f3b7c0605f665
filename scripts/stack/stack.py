"""All services with real servers, each in a process of its own that can be killed and restarted by name."""

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
from shared.runtime import tls
from shared.runtime.datadir import OWNER_FOLDER, private_folder, write_private
from shared.runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SERVICES = (
    "embedder",
    "text_extractor",
    "match_predictor",
    "retriever",
    "cache_maintainer",
    "segmenter",
    "global_monitor",
    "gpu_worker",
    "gateway",
)
"""Services in starting order; the gateway is last, because it accepts clients."""
ASKED = ("embedder", "text_extractor", "match_predictor", "retriever")
"""Services that others call; each caller gets all their addresses."""
LED = ("cache_maintainer", "global_monitor")
"""Services that commands and the console call; of several replicas the first one."""
STATE_FILE = "stack.json"
START_S, STOP_S = 180.0, 30.0
"""Seconds that a service has to start, which includes loading models, and to stop, which includes draining."""


@dataclass(frozen=True)
class Port:
    """A setting that names a server, and the programs of scripts.stack that can serve it, best first."""

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
    """Return the first program of the port that is installed; None when none is."""
    return next((name for name in port.programs if _module(name).find() is not None), None)


def missing(environment: Mapping[str, str]) -> list[str]:
    """Return one message per missing server, with the ways to get it."""
    said = []
    for port in PORTS:
        if not environment.get(variable(port.setting)) and program_for(port) is None:
            ways = "; or ".join(f"{name}: {_module(name).HOW_TO_GET_IT}" for name in port.programs)
            said.append(f"{port.setting}: no {' and no '.join(port.programs)} here. {ways}; "
                        f"or set {variable(port.setting)} to one that runs.")  # fmt: skip
    return said


class Stack:
    """Servers and services of one stack, by name: a server (`postgresql`) or a replica (`gpu_worker-2`, from 1)."""

    def __init__(self, folder: Path, *, replicas: Mapping[str, int] | None = None, settings: Mapping[str, Any] = {}):
        """settings: settings of every service, by name; a URL among them names a server that already runs."""
        self.folder = folder.absolute()
        self.processes: dict[str, Server] = {}
        self._replicas = dict.fromkeys(SERVICES, 1) | dict(replicas or {})
        self._settings = {variable(name): _text(value) for name, value in settings.items()}
        self._addresses: dict[str, str] = {}

    # ---- inventory ----

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every service: the caller's variables, then this stack's settings and URLs."""
        given = {name: value for name, value in os.environ.items() if name.startswith("AFTERIMAGE_")}
        urls = {
            variable(port.setting): self.processes[name].url
            for port in PORTS
            for name in port.programs
            if name in self.processes
        }
        asked = {variable(f"{service}_address"): ",".join(self._of(service)) for service in ASKED}
        asked |= {variable(f"{service}_address"): ",".join(self._of(service)[:1]) for service in LED}
        # the compatibility of latents depends on the worker's device, which other services cannot see
        device = {} if any(Path("/dev").glob("nvidia[0-9]*")) else {variable("device"): "cpu"}
        return {**device, **given, **self._settings, **urls, **asked, "PYTHONPATH": _python_path()}

    @property
    def gateways(self) -> list[str]:
        return self._of("gateway")

    def address(self, name: str) -> str:
        return self._addresses[name]

    def names(self, service: str = "") -> list[str]:
        """Return the names of a service's replicas; without a service, all names."""
        return [name for name in self.processes if not service or name.rpartition("-")[0] == service]

    def _of(self, service: str) -> list[str]:
        return [address for name, address in self._addresses.items() if name.rpartition("-")[0] == service]

    # ---- start and stop ----

    def start(self, told: Callable[[str], None] = lambda _: None) -> Stack:
        """Start the servers, then the services; stop everything again when one is missing or fails."""
        if said := missing({**os.environ, **self._settings}):
            raise StackError("\n".join(said))
        # PostgreSQL runs in a subfolder, as another user if this process is root
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
        """Start all servers at once, since each spends most of its start waiting."""
        known = {**os.environ, **self._settings}
        wanted = [name for port in PORTS if not known.get(variable(port.setting)) and (name := program_for(port))]
        with ThreadPoolExecutor(len(PORTS)) as pool:
            started = [pool.submit(self.start_server, name) for name in wanted]
            for name, server in zip(wanted, started, strict=True):
                if server.exception() is None:
                    self.processes[name] = server.result()
        for server in started:
            server.result()  # raises the error of the first failed server

    def start_server(self, name: str) -> Server:
        """Start one server; a subclass may start it otherwise."""
        server: Server = _module(name).start(self.folder / name, self.host(name))
        return server

    def start_services(self) -> None:
        names = [f"{service}-{at + 1}" for service in SERVICES for at in range(self._replicas[service])]
        for name in names:
            self._addresses[name] = f"{self.host(name)}:{free_port()}"
        for name in names:
            self.processes[name] = self._service(name).launch()
        for name in names:
            self.processes[name].wait_ready()

    def add(self, service: str) -> str:
        """Start one more replica of a service that no other service calls; return its name."""
        if service in ASKED:
            raise StackError(
                f"{service}: its callers know only the addresses of their start; start more replicas with `up`"
            )
        name = f"{service}-{len(self.names(service)) + 1}"
        self._addresses[name] = f"{self.host(name)}:{free_port()}"
        self.processes[name] = self._service(name).start()
        return name

    def stop(self) -> None:
        """Stop all services at once, then the servers."""
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

    # ---- single processes ----

    def kill(self, name: str) -> None:
        """Send SIGKILL."""
        self.processes[name].kill()

    def restart(self, name: str) -> None:
        """Stop the process if it runs, then start it again with the same data and ports."""
        self.processes[name].stop(timeout_s=STOP_S)
        self.processes[name].start()

    def host(self, name: str) -> str:
        """Return the host that the process listens on; a subclass may choose another."""
        return HOST

    def command(self, name: str) -> list[str]:
        """Return the command of a replica; a subclass may wrap it."""
        return [sys.executable, "-m", f"services.{name.rpartition('-')[0]}"]

    def own(self, name: str) -> Mapping[str, str]:
        """Return variables of one replica alone; a subclass may have some."""
        return {}

    def _service(self, name: str) -> Server:
        address = self._addresses[name]
        own = {"AFTERIMAGE_LISTEN": address, "AFTERIMAGE_METRICS_LISTEN": f"{self.host(name)}:{free_port()}"}
        threads = max(1, (os.cpu_count() or 1) // max(1, self._replicas["gpu_worker"]))
        return Server(
            name=name,
            url=address,
            folder=self.folder / "services",
            command=self.command(name),
            ready=_ready(name, address, self.environment),
            environment={"AFTERIMAGE_TORCH_THREADS": str(threads), **self.environment, **self.own(name), **own},
            start_timeout_s=START_S,
        )

    # ---- save and load ----

    def save(self) -> None:
        """Write the list of processes for `load`."""
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
        # the URLs hold passwords
        write_private(self.folder / STATE_FILE, json.dumps({"processes": rows}, indent=2))

    @classmethod
    def load(cls, folder: Path) -> Stack:
        """Return the stack that `save` wrote; StackError when there is none.

        Its services can be restarted, its servers only stopped.
        """
        try:
            rows = json.loads((folder / STATE_FILE).read_text())["processes"]
        except FileNotFoundError:
            raise StackError(f"no stack was started in {folder}; start one with `make stack-up`") from None
        stack = cls(folder)
        for row in rows:
            stack.processes[row["name"]] = found = _found(row)
            if "-" in row["name"]:
                stack._addresses[row["name"]] = row["url"]
                found.ready = _ready(row["name"], row["url"], row["environment"])
                found.command = stack.command(row["name"])
                found.start_timeout_s = START_S
        return stack


def _ready(name: str, address: str, environment: Mapping[str, str]) -> Callable[[], bool]:
    service = name.rpartition("-")[0]  # clients call the gateway, without a certificate of their own
    mesh = "" if service == "gateway" else environment.get(variable("mesh_certificates"), "")
    return partial(serving, address, service, mesh)


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


def serving(address: str, service: str = "", mesh: str = "", timeout_s: float = 1.0) -> bool:
    """Return whether the gRPC health service at the address reports SERVING.

    mesh: setting `mesh_certificates`, by which the service must answer by mutual TLS; empty: plain text."""
    found = tls.mesh_of(Settings(mesh_certificates=mesh), tls.OPERATOR) if mesh else None
    if found is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, found.of_a_client(), options=[tls.expecting(service)])
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def resident_bytes(pid: int) -> int:
    """Return the bytes of memory of a process group, shared pages counted once; 0 without /proc."""
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
