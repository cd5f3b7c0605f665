"""One server for all scenarios, with a key for each of its callers."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from shared.client import AsyncClient
from shared.domain.errors import PermissionDeniedError, UnauthenticatedError
from shared.domain.identity import Rate, Role, issued, principal_of
from shared.runtime.settings import Settings
from shared.service import door
from tests.flows.conftest import tiny
from tests.flows.house import House, house

__all__ = ["tiny"]

CALLERS = {
    "alice": ("acme", [Role.USER, Role.PUBLISHER]),
    "bob": ("acme", [Role.USER]),
    "chief": ("acme", [Role.TENANT_ADMIN]),
    "eve": ("rival", [Role.USER]),
    "mallory": ("hermit", [Role.USER, Role.PUBLISHER]),
    "ops": ("acme", [Role.OPERATOR]),
}


@dataclass
class Guarded:
    """A server that takes no call without a key, each caller's key, and what the server's start logged."""

    house: House
    keys: dict[str, str]
    logged: str

    @property
    def address(self) -> str:
        return self.house.process.address

    def client(self, subject: str) -> AsyncClient:
        return AsyncClient(self.address, retry_s=0.0, api_key=self.keys[subject])

    async def issue(
        self, subject: str, tenant: str, roles: list[Role], lifetime_s: float | None = None, rate: Rate | None = None
    ) -> None:
        """Add a key, and wait until the server knows it."""
        key, self.keys[subject] = issued(principal_of(tenant, subject, roles), rate=rate)
        await self.house.backends.catalog.keys.add(key, lifetime_s)
        await self.known(subject)

    async def known(self, subject: str) -> None:
        async with asyncio.timeout(10.0), self.client(subject) as client:
            while True:
                try:
                    await client.list_jobs()
                except UnauthenticatedError:
                    await asyncio.sleep(0.02)
                except PermissionDeniedError:
                    return
                else:
                    return


SHIPPED_S = door.EVERY_S
"""Seconds between two readings of the keys outside these tests."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> AsyncIterator[Guarded]:
    given: dict[str, Any] = {"large": "noop:", "encoder": str(tiny / "clip"), "torch_threads": 1}
    given |= {"public_tenants": ("acme", "rival")}
    given |= {"data_dir": tmp_path_factory.mktemp("guarded"), "listen": "127.0.0.1:0", "metrics_listen": ""}
    given |= {"http_listen": "127.0.0.1:0"}
    given |= dict.fromkeys(("lookup_timeout_s", "call_timeout_s", "extract_timeout_s"), 10.0)  # also on a busy machine
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(door, "EVERY_S", 0.05)
        async with house(Settings(**given, allow_anonymous="never")) as it:
            found = Guarded(it, {}, repr(logs))
            await asyncio.gather(*(found.issue(name, tenant, roles) for name, (tenant, roles) in CALLERS.items()))
            yield found


def made_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=afterimage"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return certificate, key
