"""Addresses: replicas of a service as one gRPC target, and the reason why a client cannot connect."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import resource
import socket

from shared.domain.errors import AfterimageError, ConfigurationError, InvalidRequestError, UnavailableError

BALANCED = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        # a replica that drains or does not serve yet is unhealthy in the health service, and gets no calls
        "healthCheckConfig": {"serviceName": ""},
        # after a replica was killed the call goes to the next one, once (all internal calls may be repeated)
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 2,
                    "initialBackoff": "0.02s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    }
)
"""gRPC service config (grpc/doc/service_config.md) of every channel between services."""
SCHEMES = ("unix:", "unix-abstract:", "vsock:", "ipv4:", "ipv6:", "dns:", "xds:")
"""Schemes of gRPC targets that are no host:port (grpc/doc/naming.md)."""
MOST_CONNECTIONS = 10_000
PROBE_S = 1.0
SILENT_S = 3.0
"""Seconds that a command waits for the first byte of a server that accepts connections."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""HTTP/2's connection preface with an empty SETTINGS frame (RFC 9113 §3.4); a server answers with its own SETTINGS."""
_SETTINGS = 4


def most_connections(share: float) -> int:
    """Return how many connections a port takes: `share` of the process's open files, which others need, too."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, int(files * share))


class NothingListensError(UnavailableError):
    """Nothing listens on this address.

    Start Afterimage with `afterimage up`, or name another address with --target.
    """


class SilentError(UnavailableError):
    """A server accepts connections on this address and does not answer.

    Try again after a few seconds: the server may still be starting or be very busy. If nothing changes, check that
    Afterimage listens there.
    """


def silent(address: str, silent_s: float) -> SilentError:
    """Return the error for a server that accepted a connection and then sent nothing for `silent_s` seconds."""
    rule = f"takes connections and has not answered within {silent_s:g} s"
    return SilentError(
        f"{address}: {rule}: it is still starting, very busy, or not Afterimage; try again in a few seconds"
    )


def target_of(addresses: str, setting: str) -> str:
    """Return the gRPC target for `host:port`, for several `ip:port` separated by commas, or for a gRPC name.

    A single host name may have several addresses: replicas behind one name, as in Docker and Kubernetes.
    """
    several = [address.strip() for address in addresses.split(",") if address.strip()]
    if len(several) == 1:
        return several[0]
    families = {_family(address, setting) for address in several}
    if len(families) != 1:
        raise ConfigurationError(f"{setting}: several addresses must all be IPv4 or all IPv6 (got {addresses!r})")
    return f"{families.pop()}:{','.join(several)}"


def _family(address: str, setting: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
        int(port)
    except ValueError:
        raise ConfigurationError(
            f"{setting}: {address!r} is not ip:port; several replicas are listed by IP address, or share one host name"
        ) from None
    return f"ipv{version}"


def check_address(address: str, setting: str) -> None:
    """Raise ConfigurationError for a text that is no address to listen on."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") and len(address) > len("unix:"):
        return
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        rule = "must be host:port with a port from 0 (any that is free) to 65535, or unix:PATH"
        raise ConfigurationError(f"{setting}: {rule} (got {address!r})")


def check_target(target: str, setting: str = "target") -> str:
    """Return the address for a client; raise InvalidRequestError for a missing port or a malformed address."""
    host, _, port = target.rpartition(":")
    if target.startswith(SCHEMES):
        return target
    if target and ":" not in target:
        raise InvalidRequestError(setting, f"must name a port too, as in {target}:50051", target)
    named = bool(host) and "/" not in target and (":" not in host or host.startswith("["))
    if not named or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= 65535:
        raise InvalidRequestError(
            setting, "must be host:port, as in 127.0.0.1:50051 or [::1]:50051, or unix:PATH", target
        )
    return target


def from_here(address: str) -> str:
    """Return an address to listen on, or a URL of one, as this machine's clients call it: nobody calls 0.0.0.0."""
    scheme, slashes, rest = address.rpartition("//")
    host, colon, port = rest.rpartition(":")
    called = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"{scheme}{slashes}{called}{colon}{port}"


def ended(address: str, said: str) -> UnavailableError | None:
    """Return the error for a server that can be reached and ends each connection; None where gRPC says otherwise.

    said: gRPC's own text.
    """
    if address.startswith(SCHEMES) or "failed to connect" not in said:  # of such addresses `unreachable` knows nothing
        return None
    return UnavailableError(
        f"{address}: takes connections and ends them; it is starting or ending, or AFTERIMAGE_TLS_CA does not fit: it "
        f"must name the authority of a server with TLS, and be unset for one without ({said})"
    )


async def unreachable(address: str, silent_s: float | None = None) -> AfterimageError | None:
    """Return the reason why gRPC cannot reach `address`; None if it can, and for gRPC names that are no host:port.

    The reason is NothingListensError, UnavailableError for an unknown or silent host, or ConfigurationError for a
    server of another protocol. With `silent_s`, a server that accepts a connection and sends nothing for that many
    seconds is a SilentError; without `silent_s` it is no error.
    """
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("unix:"):
            opening = asyncio.open_unix_connection(address.removeprefix("unix:").removeprefix("//"))
        elif address.startswith(SCHEMES):
            return None
        else:
            opening = asyncio.open_connection(host.strip("[]"), int(port))
        reader, writer = await asyncio.wait_for(opening, PROBE_S)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label that no host name can have
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        return UnavailableError(f"{address}: the host {host!r} has no address ({why}); check its name")
    except TimeoutError:
        return UnavailableError(f"{address}: no connection within {PROBE_S:g} s; check the host, and firewalls between")
    except OSError:
        return NothingListensError(f"nothing listens on {address}")
    try:
        return await _another_protocol(address, reader, writer, silent_s)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _another_protocol(
    address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent_s: float | None
) -> AfterimageError | None:
    """Return an error if the server's first bytes are not gRPC's.

    Only bytes prove that: a process that starts is silent, and a process that ends closes the connection.
    """
    answer = b""
    try:
        writer.write(_PREFACE)
        answer = await asyncio.wait_for(reader.read(9), silent_s or PROBE_S)
    except TimeoutError:
        if silent_s:
            return silent(address, silent_s)
    except OSError:
        return None
    if len(answer) < 4 or answer[3] == _SETTINGS:
        return None
    return ConfigurationError(
        f"{address}: a server that is not Afterimage listens there: it does not speak gRPC (its answer begins with "
        f"{answer!r}); name the gRPC port that `afterimage up` prints"
    )
