"""Checks of the four servers, of the clocks, and of the service that listens here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from typing import Any

import grpc

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.connection import address_of
from services.cli.doctor.findings import Check, Finding, ok, warning, wrong
from services.cli.health import check_serves
from shared.blobs import open_blobs
from shared.bus import open_bus
from shared.client.credentials import API_KEY, bearer, blocking_channel, credentials
from shared.domain.errors import AfterimageError, UnavailableError
from shared.index import open_index
from shared.runtime.addresses import SILENT_S, NothingListensError, SilentError, unreachable
from shared.runtime.probes import Probe
from shared.runtime.settings import Settings

ANSWER_S, LIMIT_S = 4.0, 15.0
"""Seconds of one answer of a server, and of the whole check."""
AHEAD_S = 1.0
"""Seconds between two clocks from which they count as different."""
WHY = {
    "catalog": "leases and deadlines go by the catalog's clock and stay right, but ages of blobs and log lines go by "
    "this machine's",
    "blobs": "the collector compares ages of blobs by this machine's clock, and S3 refuses requests 15 minutes off",
}
"""Reasons why a clock matters, by port."""
URLS = {"catalog": "catalog_url", "bus": "bus_url", "blobs": "blobs_url", "index": "index_url"}
INSIDE = {"bus": "inprocess:", "blobs": "file:", "index": "memory:"}


def server_checks(settings: Settings) -> list[Check]:
    """Return the checks of the four URLs, and one of the clocks that those have read."""
    probes: dict[str, Probe] = {}
    asked: dict[str, Callable[[], Probe | None]] = {
        "catalog": partial(_catalog, settings),
        "bus": partial(_bus, settings),
        "blobs": partial(_blobs, settings),
        "index": partial(_index, settings),
    }
    each = [Check(port, LIMIT_S, partial(_server, port, ask, settings, probes)) for port, ask in asked.items()]
    return [*each, Check("clocks", LIMIT_S, partial(compared_clocks, probes))]


def _catalog(settings: Settings) -> Probe | None:
    from shared.catalog.probe import probe_catalog

    return asyncio.run(probe_catalog(settings.catalog_url))


def _bus(settings: Settings) -> Probe | None:
    if not settings.bus_url.startswith(("amqp:", "amqps:")):
        asyncio.run(open_bus(settings.bus_url))  # raises: no other scheme is left
    from shared.bus.rabbitmq.probe import probe_broker

    return asyncio.run(probe_broker(settings.bus_url, ANSWER_S))


def _blobs(settings: Settings) -> Probe | None:
    if not settings.blobs_url.startswith("minio:"):
        asyncio.run(open_blobs(settings.blobs_url))  # raises, as above
    from shared.blobs.minio import probe_bucket

    secret = settings.blobs_secret_key.get_secret_value()
    return probe_bucket(settings.blobs_url, settings.blobs_access_key, secret, ANSWER_S)


def _index(settings: Settings) -> Probe | None:
    if not settings.index_url.startswith("weaviate:"):
        asyncio.run(open_index(settings.index_url))  # raises, as above
    from shared.index.weaviate.probe import probe_index

    return asyncio.run(probe_index(settings.index_url, ANSWER_S))


def _server(
    port: str, ask: Callable[[], Probe | None], settings: Settings, probes: dict[str, Probe]
) -> Iterator[Finding]:
    url = str(getattr(settings, URLS[port]))
    if port in INSIDE and url.startswith(INSIDE[port]):
        yield ok(port, "in files" if port == "blobs" else "inside the process")
        return
    try:
        probe = ask()
    except UnavailableError as error:
        do = f"start the server, or correct AFTERIMAGE_{URLS[port].upper()}, and check the network between"
        yield wrong(port, str(error), do)
        return
    if probe is None:
        yield ok(port, "SQLite, no file yet: the first start makes it")
        return
    probes[port] = probe
    if probe.wrong:
        yield wrong(port, f"{probe.server}: {probe.wrong}")
        return
    yield from (warning(port, f"{probe.server}: {said}") for said in probe.warnings)
    yield ok(port, f"{probe.server}, {probe.found}, round trip {probe.round_trip_s * 1e3:.1f} ms")


def compared_clocks(probes: Mapping[str, Probe]) -> Iterator[Finding]:
    """Compare the clocks of probed servers, by port, with this machine's."""
    told = {port: probe.clock_ahead_s for port, probe in probes.items() if probe.clock_ahead_s is not None}
    if not told:
        yield ok("clocks", "no server reported its time, so there is nothing to compare")
    for port, ahead in told.items():
        fact = f"{probes[port].server} is {abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
        if abs(ahead) > AHEAD_S:
            yield warning("clocks", fact, f"set both clocks by NTP: {WHY[port]}")
        else:
            yield ok("clocks", fact)
    if "bus" in probes:
        yield ok("clocks", "RabbitMQ was not asked: AMQP reports no time, and no rule uses the broker's clock")


def check_service(settings: Settings) -> Iterator[Finding]:
    """Check that what listens on `listen`, or works in the data directory, serves and has this version."""
    check, ours = "service", metadata.version("afterimage")
    if settings.listen.endswith(":0"):
        yield ok(check, f"listen={settings.listen} takes any free port")
        return
    address = address_of(None, settings)
    # a TLS server says nothing before its client
    why = asyncio.run(unreachable(address, None if credentials(address) else SILENT_S))
    if isinstance(why, NothingListensError):
        yield ok(check, f"nothing listens on {address}: `afterimage up` starts it")
        return
    try:
        if why is not None:
            raise why
        check_serves(address)
    except SilentError as error:
        yield warning(check, str(error))
        return
    except AfterimageError as error:
        yield wrong(check, str(error))
        return
    try:
        version = _version(address)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and bearer():
            yield wrong(check, f"{address} refuses the key of {API_KEY}", "see `afterimage keys list`, or unset it")
            return
        refused = error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        reason = "it tells its version to an operator's API key alone" if refused else "it is no gateway"
        yield ok(check, f"{address} serves; {reason}, so its version is not known")
        return
    if version == ours:
        yield ok(check, f"{address} serves, with the same version {ours}")
    else:
        fact = f"{address} serves, with {f'version {version}' if version else 'an earlier version'}; this is {ours}"
        yield warning(check, fact, "restart it, or use its version of this command")


def _version(address: str) -> str:
    """Return the version of the gateway at this address, empty for an earlier one."""
    with blocking_channel(address) as channel:
        stub: Any = GatewayServiceStub(channel)
        return str(stub.Locate(pb.LocateRequest(), timeout=SILENT_S, metadata=bearer()).version)
