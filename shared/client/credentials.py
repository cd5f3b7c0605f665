"""What a client shows a server, and checks of it: an API key, and the server's certificate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import grpc

from shared.domain.errors import ConfigurationError

API_KEY, TLS_CA = "AFTERIMAGE_API_KEY", "AFTERIMAGE_TLS_CA"
SYSTEM = "system"


def bearer(api_key: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return the call metadata with the key; empty without one. api_key: None reads AFTERIMAGE_API_KEY."""
    key = (os.environ.get(API_KEY, "") if api_key is None else api_key).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("api_key: must be a key as `afterimage keys create` printed it")
    return (("authorization", f"Bearer {key}"),) if key else ()


def channel(target: str, tls_ca: str | None = None, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """Return a channel with the `credentials` that the CA gives."""
    found = credentials(target, tls_ca)
    if found is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, found, options=options)


def blocking_channel(target: str) -> grpc.Channel:
    """Return a channel for blocking calls, with the `credentials` of the environment."""
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
