"""TLS of the public addresses, and mutual TLS between services; renewed certificates are used without a restart."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import grpc

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log

OPERATOR = "operator"
"""Name of the certificate that commands show to services."""
LOOK_S = 10.0
"""Seconds between two checks of a client's files."""


class Certificate:
    """A certificate chain and its private key, in PEM files that are read again when one of them changes.

    An object is for a server or for a client: it remembers which files it has read.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path | None = None, *, named: str) -> None:
        """authority: PEM file of the authority that signs the other side's certificate, for mutual TLS.
        named: the settings to correct, for messages."""
        self._paths = (certificate, key, *([authority] if authority else []))
        self._named, self._mutual = named, authority is not None
        self._seen: Any = None
        self._looked_at = 0.0

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that look at the files at every handshake. Raises ConfigurationError."""
        try:
            first = self._read()
        except OSError as error:
            raise ConfigurationError(f"{self._named}: {error}; name PEM files") from error
        return grpc.dynamic_ssl_server_credentials(first, self._changed, require_client_authentication=self._mutual)

    def of_a_client(self) -> grpc.ChannelCredentials:
        """Return credentials that present this certificate, and check the server's. Raises ConfigurationError."""
        try:
            chain, key, *authority = self._files()
        except OSError as error:
            raise ConfigurationError(f"{self._named}: {error}; name PEM files") from error
        return grpc.ssl_channel_credentials(*authority, private_key=key, certificate_chain=chain)

    def renewed(self) -> bool:
        """Return whether the files differ from those that `of_a_client` read; checks every LOOK_S seconds."""
        if (now := time.monotonic()) < self._looked_at + LOOK_S:
            return False
        self._looked_at = now
        try:
            return bool(self._stamp() != self._seen)
        except OSError as error:
            log("tls").error("certificate not read again", error=str(error))
            return False

    def https(self) -> ssl.SSLContext:
        """Return a context that looks at the files at every handshake. Raises ConfigurationError."""
        try:
            self._seen, current = self._stamp(), self._context()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(f"{self._named}: {error}; name PEM files") from error

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
        context.load_cert_chain(self._paths[0], self._paths[1])
        return context

    def _changed(self) -> Any:
        """Return the new files' configuration; None, and keep the old one, if they are the same or unreadable."""
        try:
            return self._read() if self._stamp() != self._seen else None
        except OSError as error:
            log("tls").error("certificate not read again", error=str(error))
            return None

    def _read(self) -> Any:
        chain, key, *authority = self._files()
        return grpc.ssl_server_certificate_configuration([(key, chain)], *authority)

    def _files(self) -> list[bytes]:
        """Read the files. Raises OSError; a failed read is tried again."""
        before = self._stamp()
        found = [path.read_bytes() for path in self._paths]
        if self._stamp() != before:  # a new key would come with the old certificate
            raise OSError("the files changed while they were read")
        self._seen = before
        return found

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
    return Certificate(Path(settings.tls_certificate), Path(settings.tls_key), named="tls_certificate, tls_key")


def mesh_of(settings: Settings, name: str) -> Certificate | None:
    """Return the certificate that a service, or OPERATOR, presents to others; None without mutual TLS."""
    if not settings.mesh_certificates:
        return None
    folder = Path(settings.mesh_certificates) / mesh_name(name)
    return Certificate(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", named="mesh_certificates")


def mesh_name(service: str) -> str:
    """Return the DNS name in a service's certificate."""
    return service.replace("_", "-")


def expecting(service: str) -> tuple[str, str]:
    """Return the option of a channel whose server must show this service's certificate, whatever its address."""
    return ("grpc.ssl_target_name_override", mesh_name(service))
