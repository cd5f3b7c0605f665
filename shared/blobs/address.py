"""Parsing of `minio://…` URLs: bucket, server and access keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from shared.domain.errors import ConfigurationError

FORMS = (
    "minio://access:secret@host:port/bucket (or minio://bucket@host:port, with blobs_access_key and blobs_secret_key)"
)
KNOWN = ("secure", "region", "public")


@dataclass(frozen=True, slots=True)
class Address:
    """A bucket of an S3 server; its access keys are never shown."""

    bucket: str
    endpoint: str
    """host:port"""
    secure: bool
    region: str
    public: str
    """host:port at which outside clients reach the server."""
    public_secure: bool
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)


def address_of(url: str, access_key: str = "", secret_key: str = "") -> Address:
    """Parse `minio://bucket@host:port` or `minio://access:secret@host:port/bucket`; keys in the URL override others.

    Parameters: `secure=true` for TLS, `region`, and `public=https://host:port` if clients reach the server under
    another address. Raise ConfigurationError for anything else; the error never quotes the URL, which may hold a
    secret.
    """
    try:
        parts = urlsplit(url)
        endpoint = f"{parts.hostname}:{parts.port}" if parts.hostname and parts.port else ""
        public = urlsplit(parse_qs(parts.query).get("public", [""])[-1])
    except ValueError as error:
        raise ConfigurationError(f"blobs_url: must be {FORMS}") from error
    wish = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    bucket, user = parts.path.strip("/"), unquote(parts.username or "")
    if not bucket:
        bucket, user = user, ""
    if not bucket or not endpoint:
        raise ConfigurationError(f"blobs_url: bucket, host or port is missing; use {FORMS}")
    if unknown := set(wish) - set(KNOWN):
        raise ConfigurationError(f"blobs_url: parameters must be {', '.join(KNOWN)} (got {min(unknown)!r})")
    if wish.get("secure", "false") not in ("true", "false"):
        raise ConfigurationError(f"blobs_url: secure must be true or false (got {wish['secure']!r})")
    secure = wish.get("secure") == "true"
    if user:
        access_key, secret_key = user, unquote(parts.password or "")
    return Address(
        bucket,
        endpoint,
        secure,
        wish.get("region", "us-east-1"),
        public.netloc or endpoint,
        public.scheme == "https" if public.netloc else secure,
        access_key,
        secret_key,
    )
