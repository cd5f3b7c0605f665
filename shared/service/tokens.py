"""JSON Web Tokens of an identity provider: a second way to a principal, beside API keys (ADR 24)."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shared.domain.errors import ConfigurationError, InvalidRequestError, UnauthenticatedError, UnavailableError
from shared.domain.identity import ApiKey, Principal, Role, kept_subject, principal_of
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]
"""Signatures that only the provider can make. The token's own header chooses among these alone."""
EVERY_S = 1.0
REFRESH_S, UNKNOWN_S = 300.0, 10.0
"""Seconds between two readings of the provider's keys; least seconds between two where a token names an unknown one."""
LEEWAY_S = 30
"""Seconds by which the provider's clock may differ."""
LONGEST_S = 86_400.0
"""Seconds after which a call under a token ends, however long the token lives."""
FETCH_S, MOST_BYTES = 5.0, 2**20
_LOCAL = [("http", host) for host in ("127.0.0.1", "localhost", "::1")]


class Tokens:
    """Reads tokens with the provider's keys, which are in memory: a call costs a signature's check and no query."""

    def __init__(self, settings: Settings) -> None:
        self._issuer, self._audience, self._where = settings.jwt_issuer, settings.jwt_audience, settings.jwt_keys
        self._keys: KeySet | None = None
        self._tried_at, self._read_at, self._missed = -math.inf, -math.inf, False

    @classmethod
    def of(cls, settings: Settings) -> Tokens | None:
        """Return None where the settings name no provider. Raises ConfigurationError."""
        given = {name: getattr(settings, name) for name in ("jwt_issuer", "jwt_audience", "jwt_keys")}
        if not any(given.values()):
            return None
        if missing := [name for name, value in given.items() if not value]:
            raise ConfigurationError(f"{', '.join(missing)}: must be set too, or leave out all of {', '.join(given)}")
        parts = urlsplit(settings.jwt_keys)
        if "://" in settings.jwt_keys and parts.scheme != "https" and (parts.scheme, parts.hostname) not in _LOCAL:
            raise ConfigurationError("jwt_keys: must be https:// or a file, or others could replace the keys")
        return cls(settings)

    async def run(self) -> None:
        """Keep the provider's keys fresh, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the provider's keys again if they are due. The last ones stay where that fails."""
        now = time.monotonic()
        if now < self._tried_at + (UNKNOWN_S if self._missed or self._keys is None else REFRESH_S):
            return
        self._tried_at, self._missed = now, False
        try:
            self._keys, self._read_at = await self._fetched(), now
        except Exception as error:  # whatever a provider answers, keys and the tokens known so far go on
            log("door").warning("the provider's keys were not read", where=self._where, error=repr(error)[:300])

    async def _fetched(self) -> KeySet:
        from joserfc.jwk import KeySet

        if "://" not in self._where:
            return KeySet.import_key_set(json.loads(await asyncio.to_thread(Path(self._where).read_bytes)))
        import httpx

        data = b""
        async with (
            asyncio.timeout(FETCH_S),
            httpx.AsyncClient(follow_redirects=False) as client,
            client.stream("GET", self._where) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes")
        return KeySet.import_key_set(json.loads(data))

    def read(self, text: str) -> ApiKey:
        """Return who a token names, as a key that ends with it and has no id.

        Raises UnauthenticatedError, and UnavailableError for a token whose key the next reading may find.
        """
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError

        if self._keys is None:
            raise UnavailableError("authorization: the provider's keys are not known yet; retry", retry_after_s=1.0)
        rules = jwt.JWTClaimsRegistry(  # for each call: early versions keep the time at which it was made
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            token = jwt.decode(text, self._keys, algorithms=ALGORITHMS)
            rules.validate(token.claims)
        except InvalidKeyIdError as error:
            self._missed = True
            if time.monotonic() < self._read_at + UNKNOWN_S:
                raise UnauthenticatedError("authorization: no key of the provider signed this token") from error
            said = "authorization: this token's key is not known yet; retry"
            raise UnavailableError(said, retry_after_s=1.0) from error
        except Exception as error:  # anybody's bytes, read before their signature: nested JSON is a RecursionError
            raise UnauthenticatedError(f"authorization: this token is refused: {_why(error)}") from error
        ends = min(float(token.claims["exp"]) + LEEWAY_S, time.time() + LONGEST_S)
        return ApiKey("", "", _principal(token.claims), expires_at=ends)


def looks_like_token(text: str) -> bool:
    """Return whether this may be a token: three parts, and a JSON header."""
    return text.startswith("eyJ") and text.count(".") == 2


def _principal(claims: dict[str, Any]) -> Principal:
    subject, tenant, roles = kept_subject(str(claims["sub"])), claims.get("tenant"), claims.get("roles", [Role.USER])
    given = roles.split() if isinstance(roles, str) else roles if isinstance(roles, list) else []
    known = [role for role in given if isinstance(role, str) and role in set(Role)]
    try:
        return principal_of(tenant if isinstance(tenant, str) else "", subject, known)
    except InvalidRequestError as error:
        raise UnauthenticatedError(f"authorization: the token's claim {error}") from error


def _why(error: Exception) -> str:
    return str(error).partition("\n")[0][:120] or type(error).__name__
