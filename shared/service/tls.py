"""TLS of the public addresses; renewed certificates are used without a restart."""

from __future__ import annotations

import ssl
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

    def https(self) -> ssl.SSLContext:
        """Return a context that looks at the files at every handshake. Raises ConfigurationError."""
        try:
            self._seen, current = self._stamp(), self._context()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(f"tls_certificate, tls_key: {error}; name two PEM files") from error

        def renewed(connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
            nonlocal current
            try:
                if (stamp := self._stamp()) != self._seen:
                    current, self._seen = self._context(), stamp
            except OSError as error:
                log("tls").error("certificate not read again", error=str(error))
            connection.context = current

        current.sni_callback = renewed  # called for every handshake, also without a name
        return current

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._paths)
        return context

    def _changed(self) -> Any:
        """Return the new files' configuration; None, and keep the old one, if they are the same or unreadable."""
        try:
            return self._read() if self._stamp() != self._seen else None
        except OSError as error:
            log("tls").error("certificate not read again", error=str(error))
            return None

    def _read(self) -> Any:
        seen = self._stamp()
        chain, key = (path.read_bytes() for path in self._paths)
        self._seen = seen  # a failed read is tried again at the next handshake
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _stamp(self) -> Any:
        return [(found.st_mtime_ns, found.st_ino, found.st_size) for found in (path.stat() for path in self._paths)]


def https_of(settings: Settings) -> ssl.SSLContext | None:
    """Return the context of the HTTP address; None without TLS. Raises ConfigurationError."""
    certificate = _certificate(settings)
    return certificate.https() if certificate else None


def credentials_of(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the credentials of the gRPC address; None without TLS. Raises ConfigurationError."""
    certificate = _certificate(settings)
    return certificate.credentials() if certificate else None


def _certificate(settings: Settings) -> Certificate | None:
    if not settings.tls_certificate and not settings.tls_key:
        return None
    if not (settings.tls_certificate and settings.tls_key):
        raise ConfigurationError("tls_certificate, tls_key: set both or neither")
    return Certificate(Path(settings.tls_certificate), Path(settings.tls_key))
