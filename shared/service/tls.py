"""TLS of the public address; renewed certificates are used without a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


class Certificate:
    """A certificate chain and its private key, in two PEM files that are read again when one of them changes."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        self._seen: Any = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that look at the files at every handshake. Raises ConfigurationError."""
        try:
            first = self._read()
        except OSError as error:
            raise ConfigurationError(f"tls_certificate, tls_key: {error}; name two PEM files") from error
        return grpc.dynamic_ssl_server_credentials(first, self._changed)

    def _changed(self) -> Any:
        """Return the new files' configuration; None, and keep the old one, if they are the same or unreadable."""
        try:
            return self._read() if self._stamp() != self._seen else None
        except OSError as error:
            log("tls").error("certificate not read again", error=str(error))
            return None

    def _read(self) -> Any:
        self._seen = self._stamp()
        chain, key = (path.read_bytes() for path in self._paths)
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _stamp(self) -> Any:
        return [(found.st_mtime_ns, found.st_ino, found.st_size) for found in (path.stat() for path in self._paths)]


def credentials_of(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the credentials of the public address; None without TLS. Raises ConfigurationError."""
    if not settings.tls_certificate and not settings.tls_key:
        return None
    if not (settings.tls_certificate and settings.tls_key):
        raise ConfigurationError("tls_certificate, tls_key: set both or neither")
    return Certificate(Path(settings.tls_certificate), Path(settings.tls_key)).credentials()
