"""Signed URLs of images: whoever has one may read one image until it expires, without a key."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from pathlib import Path
from urllib.parse import urlencode

from services.gateway.http.errors import HttpError
from shared.domain.errors import ConfigurationError
from shared.runtime.datadir import private_folder, private_opener
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log

SECRET_FILE = "url-secret"
LEAST_CHARS = 32


def secret_of(settings: Settings) -> bytes:
    """Return the secret of the settings, or that of the data directory, which is made where there is none.

    In a folder that cannot be written, the secret lasts as long as the process. Raises ConfigurationError for a short
    secret.
    """
    if given := settings.http_url_secret.get_secret_value():
        if len(given) < LEAST_CHARS:
            raise ConfigurationError(f"http_url_secret: must have {LEAST_CHARS} characters or more (got {len(given)})")
        return given.encode()
    path = settings.data_dir / SECRET_FILE
    try:
        return _read_or_make(path)
    except OSError as error:
        log("gateway").warning("image URLs end with this process", why=str(error), do="set http_url_secret")
        return secrets.token_bytes(32)


def _read_or_make(path: Path) -> bytes:
    private_folder(path.parent, tighten=False)
    try:
        with open(path, "x", opener=private_opener) as file:
            file.write(secrets.token_urlsafe(32))
    except FileExistsError:
        pass
    secret = path.read_bytes()
    if len(secret) < LEAST_CHARS:
        raise ConfigurationError(f"{path}: must have {LEAST_CHARS} characters or more; delete it for a new one")
    return secret


class Signer:
    """Signs paths of images and checks them. Replicas with the same secret accept each other's URLs."""

    def __init__(self, secret: bytes, lifetime_s: float) -> None:
        self._secret, self._lifetime_s = secret, lifetime_s

    def query(self, job_id: str, output: str, now: float) -> str:
        """Return the query of a URL that shows this job's image in this format. now: Unix seconds."""
        expires = int(now + self._lifetime_s)
        return urlencode({"format": output, "expires": expires, "signature": self._signature(job_id, output, expires)})

    def check(self, job_id: str, output: str, expires: int, signature: str, now: float) -> None:
        """Raise HttpError for a URL that this secret did not sign, or that has expired."""
        if not hmac.compare_digest(self._signature(job_id, output, expires).encode(), signature.encode()):
            rule = "signature: does not belong to this URL; use the URL as the response gave it"
            raise HttpError(403, rule, "signature", "bad_signature", "permission_error")
        if now > expires:
            rule = "expires: this URL has expired; send the request again, or read the image with a key"
            raise HttpError(403, rule, "expires", "url_expired", "permission_error")

    def _signature(self, job_id: str, output: str, expires: int) -> str:
        signed = hmac.digest(self._secret, f"image\n{job_id}\n{output}\n{expires}".encode(), "sha256")
        return urlsafe_b64encode(signed).decode().rstrip("=")
