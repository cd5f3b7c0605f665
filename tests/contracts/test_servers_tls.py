"""The four servers by TLS: their URLs say so, and variables of their libraries name the authority."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from scripts.stack.servers import free_port
from tests.attacks.conftest import made_certificate
from tests.conftest import ROOT
from tests.contracts.servers import REQUIRED, server_of

PASSED_ON = ("bus", "blobs", "index", "index_grpc")
PORTS = {"catalog", "bus", "blobs", "index"}


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Yield settings and variables of servers that take TLS alone: PostgreSQL by itself, the others behind HAProxy."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        (pytest.fail if "haproxy" in REQUIRED else pytest.skip)("no haproxy: apt-get install haproxy")
    urls = {name: server_of(name).url for name in ("postgresql", "rabbitmq", "minio", "weaviate")}
    certificate, key = made_certificate(tmp_path, "servers")
    (tmp_path / "both.pem").write_text(certificate.read_text() + key.read_text())
    plain = {"bus": urls["rabbitmq"], "blobs": urls["minio"], "index": urls["weaviate"], "index_grpc": ""}
    behind = {name: urlsplit(url).netloc.rpartition("@")[2] for name, url in plain.items()}
    grpc_port = re.search(r"grpc_port=(\d+)", urls["weaviate"])
    assert grpc_port is not None
    behind["index_grpc"] = f"127.0.0.1:{grpc_port[1]}"
    ports = {name: free_port() for name in PASSED_ON}
    lines = ["defaults", "mode tcp", "timeout connect 5s", "timeout client 60s", "timeout server 60s"]
    for name in PASSED_ON:
        offers = " alpn h2" if name == "index_grpc" else ""
        lines += [f"listen {name}", f"bind 127.0.0.1:{ports[name]} ssl crt {tmp_path / 'both.pem'}{offers}"]
        lines += [f"server one {behind[name]}"]
    (tmp_path / "haproxy.cfg").write_text("\n".join(lines) + "\n")
    asyncio.run(_encrypt(urls["postgresql"], certificate, key))
    proxy = subprocess.Popen([program, "-db", "-f", str(tmp_path / "haproxy.cfg")])
    try:
        for port in ports.values():
            _wait_for(port)
        ca = str(certificate)
        yield {
            "AFTERIMAGE_CATALOG_URL": f"{urls['postgresql']}?ssl=verify-full",
            "AFTERIMAGE_BUS_URL": _moved(urls["rabbitmq"], "amqps", ports["bus"]) + f"?cafile={ca}",
            "AFTERIMAGE_BLOBS_URL": _moved(urls["minio"], "minio", ports["blobs"]) + "?secure=true",
            "AFTERIMAGE_INDEX_URL": _moved(urls["weaviate"], "weaviate", ports["index"])
            + f"?grpc_port={ports['index_grpc']}&secure=true",
            "PGSSLROOTCERT": ca,
            "SSL_CERT_FILE": ca,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": ca,
        }
    finally:
        proxy.terminate()
        proxy.wait()


def _moved(url: str, scheme: str, port: int) -> str:
    parts = urlsplit(url)
    who = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"{scheme}://{who}127.0.0.1:{port}{parts.path}"


def _wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


async def _encrypt(url: str, certificate: Path, key: Path) -> None:
    """Give this session's PostgreSQL a certificate, which its next connections may use."""
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            data = Path(str((await connection.execute(sa.text("SHOW data_directory"))).scalar_one()))
            owner = (await asyncio.to_thread(data.stat)).st_uid
            for source, name in ((certificate, "server.crt"), (key, "server.key")):
                await asyncio.to_thread(shutil.copy, source, data / name)
                await asyncio.to_thread(os.chown, data / name, owner, -1)
                await asyncio.to_thread((data / name).chmod, 0o600)
            await connection.execute(sa.text("ALTER SYSTEM SET ssl = on"))
            await connection.execute(sa.text("SELECT pg_reload_conf()"))
    finally:
        await engine.dispose()


def doctor(given: Mapping[str, str], folder: Path) -> dict[str, list[Any]]:
    """Return verdicts and facts by port. A process of its own, because gRPC reads the authorities once."""
    command = [sys.executable, "-m", "services", "doctor", "--json", "--data-dir", str(folder)]
    environment = {**os.environ, **given, "AFTERIMAGE_LARGE": "noop:", "AFTERIMAGE_DEVICE": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    return {port: [(one["verdict"], one["fact"]) for one in found if one["check"] == port] for port in PORTS}


def test_all_four_are_reached_by_tls_and_by_no_other_authority(encrypted: Mapping[str, str], tmp_path: Path) -> None:
    reached = doctor(encrypted, tmp_path)
    assert all(verdict != "wrong" for found in reached.values() for verdict, _ in found), json.dumps(reached)
    other, _ = made_certificate(tmp_path, "other")
    asked = {name: value.replace(str(tmp_path / "servers.pem"), str(other)) for name, value in encrypted.items()}
    refused = doctor(asked, tmp_path)
    assert all(found[0][0] == "wrong" for found in refused.values()), refused
