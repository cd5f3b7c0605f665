"""Run a process of services: check its ports, serve until SIGTERM or SIGINT, drain. `main` runs one service."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.runtime import telemetry
from shared.runtime.addresses import check_address
from shared.runtime.datadir import lock_data_dir, works_in_data_dir
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.settings_names import WRONG, in_words, misspelt
from shared.service import Running, Service, running
from shared.service.backends import require_shared


class _Ending:
    """Handler of SIGTERM and SIGINT.

    A serving process drains. A starting process gives up its start; a second signal then ends the process at once,
    because a thread that loads weights cannot be stopped.
    """

    def __init__(self, starting: asyncio.Task[Any] | None) -> None:
        self._starting = starting
        self._stopping: asyncio.Event | None = None
        self.early = 0
        """The signal that arrived before the process served; 0: none."""

    def listen(self) -> None:
        # needed in a container: the kernel withholds unhandled signals from its first process
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked, number)

    def serving(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping

    def _asked(self, number: int) -> None:
        if self._stopping is not None:
            self._stopping.set()
        elif not self.early and self._starting is not None:
            self.early = number
            self._starting.cancel()
        elif self.early:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            os._exit(128 + number)  # for a container's first process, which the default action does not end


async def serve(
    services: Sequence[Service], settings: Settings, *, on_ready: Callable[[Running], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `on_ready` is called when the services serve; default: a log line.

    A signal during the start ends the started services and raises SystemExit with 128 + the signal's number.
    """
    check_free(settings)
    ending = _Ending(asyncio.current_task())
    ending.listen()
    try:
        # the port is taken before models are loaded: another program on it is reported at once
        with telemetry.serving_metrics(settings.metrics_listen):
            await _served(services, settings, ending, on_ready)
    except asyncio.CancelledError:
        if not ending.early:
            raise
        telemetry.log("afterimage").info("ended while starting", signal=signal.Signals(ending.early).name)
        raise SystemExit(128 + ending.early) from None


async def _served(
    services: Sequence[Service], settings: Settings, ending: _Ending, on_ready: Callable[[Running], None] | None
) -> None:
    async with running(services, settings) as process:
        gc.collect()
        gc.freeze()  # a full collection would visit half a million library objects, which takes 250 ms
        ending.serving(process.stopping)
        if on_ready is not None:
            on_ready(process)
        else:
            names = ", ".join(service.name for service in services)
            telemetry.log("afterimage").info(
                "ready",
                address=process.address,
                http=process.http_address or "off",
                metrics=settings.metrics_listen or "off",
                services=names,
            )
        await process.stopping.wait()
        telemetry.log("afterimage").info("draining")


def check_free(settings: Settings) -> None:
    """Raise ConfigurationError when another process has the data directory or a port, before models are loaded."""
    if works_in_data_dir(settings):
        lock_data_dir(settings.data_dir).release()
    check_address(settings.listen, "listen")
    for setting, address in {"listen": settings.listen, "metrics_listen": settings.metrics_listen}.items():
        if not address or address.startswith("unix:"):
            continue
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        try:
            socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except (OSError, ValueError, OverflowError) as error:
            if (
                getattr(error, "errno", 0) != errno.EADDRINUSE
            ):  # the server that binds the port reports all other errors
                continue
            by = f"AFTERIMAGE_{setting.upper()} or `afterimage up --{setting.replace('_', '-')}`"
            raise ConfigurationError(
                f"{setting}: another process listens on {address}; stop it, or name another host:port with {by}"
                + (", or '' for no metrics" if setting == "metrics_listen" else "")
            ) from error


def main(service: type[Service]) -> None:
    """Run one service alone (`python -m services.<name>`). Any argument prints the usage and exits."""
    if arguments := sys.argv[1:]:
        _usage(service, asked={*arguments} <= {"--help", "-h"})
    try:
        settings = Settings()
        telemetry.configure_logging(settings.log_level)
        for line in misspelt(os.environ):
            telemetry.log(service.name).warning("unknown variable", what=line)
        require_shared(settings, service.name)
        run(serve([service()], settings))
    except (AfterimageError, ValueError) as error:
        said = in_words(error) if isinstance(error, WRONG) else str(error)
        sys.stderr.write(f"{service.name}: {said}\n")
        raise SystemExit(os.EX_UNAVAILABLE if isinstance(error, UnavailableError) else os.EX_CONFIG) from None


def _usage(service: type[Service], *, asked: bool) -> NoReturn:
    package = service.__module__.rpartition(".")[0]
    out = sys.stdout if asked else sys.stderr
    out.write(
        f"usage: python -m {package}\n\n{sys.modules[package].__doc__}\n\nIt takes no arguments: its settings are "
        "AFTERIMAGE_… variables (docs/reference/settings.md); docs/how-to/run-the-cluster.md names those it needs.\n"
    )
    raise SystemExit(0 if asked else os.EX_USAGE)
