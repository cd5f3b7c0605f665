"""What a client shows a server, and checks of it: an API key, and the server's certificate."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

import grpc

from shared.domain.errors import ConfigurationError

API_KEY, TLS_CA = "AFTERIMAGE_API_KEY", "AFTERIMAGE_TLS_CA"
PLAIN_TEXT = "AFTERIMAGE_KEY_IN_PLAIN_TEXT"
SYSTEM = "system"


def bearer(api_key: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return the call metadata with the key; empty without one. api_key: None reads AFTERIMAGE_API_KEY."""
    key = (os.environ.get(API_KEY, "") if api_key is None else api_key).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("api_key: must be a key as `afterimage keys create` printed it")
    return (("authorization", f"Bearer {key}"),) if key else ()


def check_private(target: str, api_key: str | None = None, tls_ca: str | None = None) -> None:
    """Raise ConfigurationError where a key would cross a network in plain text.

    Allowed: TLS, this machine's own addresses, or AFTERIMAGE_KEY_IN_PLAIN_TEXT=1, for a network that encrypts itself.
    """
    secure = os.environ.get(TLS_CA, "") if tls_ca is None else tls_ca
    if not bearer(api_key) or secure or os.environ.get(PLAIN_TEXT) == "1" or _of_this_machine(target):
        return
    raise ConfigurationError(
        f"api_key: would go to {target} in plain text; set {TLS_CA} (a PEM file, or {SYSTEM}), or {PLAIN_TEXT}=1 where "
        "the network encrypts"
    )


def _of_this_machine(target: str) -> bool:
    if target.startswith("unix:"):
        return True
    hosts = [re.sub(r"^(ipv4|ipv6|dns):/*", "", one).rpartition(":")[0].strip("[]") for one in target.split(",")]
    return all(host == "localhost" or _loopback(host) for host in hosts)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel(
    target: str, tls_ca: str | None = None, options: Sequence[tuple[str, int]] = (), api_key: str | None = None
) -> grpc.aio.Channel:
    """Return a channel with the `credentials` that the CA gives, for calls with this key.

    Raises ConfigurationError as `check_private` does."""
    check_private(target, api_key, tls_ca)
    found = credentials(target, tls_ca)
    if found is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, found, options=options)


def blocking_channel(target: str, api_key: str | None = None) -> grpc.Channel:
    """Return a channel for blocking calls, with the `credentials` of the environment; as `channel` otherwise."""
    check_private(target, api_key)
    found = credentials(target)
    return grpc.secure_channel(target, found) if found else grpc.insecure_channel(target)


def credentials(target: str, tls_ca: str | None = None) -> grpc.ChannelCredentials | None:
    """Return the credentials that check a server's certificate; None for plain text, and for this machine's sockets.

    tls_ca: PEM file of the authorities that sign the server's certificate, or `system` for gRPC's own list; empty: no
    TLS; None reads AFTERIMAGE_TLS_CA. Raises ConfigurationError for an unreadable file.
    """
    named = os.environ.get(TLS_CA, "") if tls_ca is None else tls_ca
    if not named or target.startswith("unix:"):
        return None
    try:
        return grpc.ssl_channel_credentials(None if named == SYSTEM else Path(named).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"tls_ca: {error}; name a PEM file, or {SYSTEM}") from error
