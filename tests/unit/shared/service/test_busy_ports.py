"""A port that another process has is said before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.domain.errors import ConfigurationError, DataDirectoryLockedError
from shared.runtime.settings import Settings
from shared.runtime.telemetry import serving_metrics
from shared.service.backends import open_backends
from shared.service.process import check_free, serve

UP = """
import sys
from services.cli.app import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""


@pytest.fixture
def busy() -> Any:
    with serving_metrics("127.0.0.1:0") as port:
        yield f"127.0.0.1:{port}"


class Loading:
    """A service whose start takes long."""

    name = "loading"
    ports: frozenset[str] = frozenset()
    started = False

    async def start(self, context: Any) -> None:
        self.started = True
        raise AssertionError("the ports are looked at first")

    def register(self, server: Any) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


@pytest.mark.parametrize("setting", ["listen", "metrics_listen"])
async def test_no_service_starts_where_a_port_is_taken(settings: Settings, busy: str, setting: str) -> None:
    service: Any = Loading()
    with pytest.raises(
        ConfigurationError, match=f"^{setting}: another process listens on {busy}; .*_{setting.upper()} or"
    ):
        await serve([service], settings.model_copy(update={setting: busy}))
    assert not service.started


async def test_the_data_directory_is_named_before_its_ports(settings: Settings, busy: str) -> None:
    """Whoever starts Afterimage twice meets all three; the first that works there is what matters."""
    backends = await open_backends(settings)
    with pytest.raises(DataDirectoryLockedError):
        check_free(settings.model_copy(update={"metrics_listen": busy}))
    await backends.close()
    check_free(settings)


def test_a_port_that_was_just_left_is_free(settings: Settings) -> None:
    """A restart finds the last process's connections in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        with socket.create_connection(server.getsockname()), server.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_RDWR)
    check_free(settings.model_copy(update={"listen": address, "metrics_listen": address}))


def test_up_says_it_before_torch_is_imported(busy: str, tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path, "--listen", "127.0.0.1:0", "--metrics-listen", busy, "--large", "noop:")
    ended = subprocess.run(
        [sys.executable, "-c", UP, "up", *map(str, options)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (78, "False\n")
    assert ended.stderr == (
        f"afterimage: metrics_listen: another process listens on {busy}; stop it, or name another host:port with "
        "AFTERIMAGE_METRICS_LISTEN or `afterimage up --metrics-listen`, or '' for no metrics\n"
    )
