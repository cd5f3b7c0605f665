"""Sessions of the console: a signed cookie in place of a key, and a token against forged requests. ADR 27."""

from __future__ import annotations

import hmac
import math
import re
import time
from base64 import urlsafe_b64encode
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.types import Scope

from shared.domain.errors import PermissionDeniedError, UnauthenticatedError
from shared.domain.identity import ANONYMOUS, ApiKey, Principal, Rate, Role, parsed
from shared.service.door import Door
from shared.service.rates import Buckets

API = "/console/api/"
"""Paths whose caller is the session's, never that of an `Authorization` header."""
LOGIN = f"{API}login"
COOKIE = "afterimage_session"
LISTS = f"{API}jobs"
CSRF = "x-csrf-token"
LIFETIME_S = 12 * 3600
"""Seconds after which a session ends and the key is asked for again."""
LISTS_RATE = Rate(10.0, 200)
"""Pages of jobs that the sessions of a key read: a search by words reads all of them, and an open list refreshes
itself every 5 s, so they count apart from the key's rate."""
_TOKEN = re.compile(r"([a-z0-9]{1,32})\.([0-9]{1,12})\.[A-Za-z0-9_-]{43}")
_NOBODY = Principal("", "", frozenset())


class Sessions:
    """Makes and checks sessions. A session names a key and holds as long as the key, at most LIFETIME_S.

    Replicas with the same secret accept each other's sessions; nothing is stored.
    """

    def __init__(self, door: Door, secret: bytes, *, key_needed: bool) -> None:
        self._door, self._key_needed, self._lists = door, key_needed, Buckets("session")
        self._secret = hmac.digest(secret, b"console", "sha256")

    def begin(self, text: str) -> str:
        """Return the cookie of a new session. text: of a key. Raises UnauthenticatedError for no live key."""
        text = text.strip()
        try:
            key = self._door.key_of([f"Bearer {text}"], frozenset(Role), LOGIN, key_needed=True)
        except UnauthenticatedError:
            key = None
        if key is None or not key.id:  # tokens begin no sessions
            said = "is unknown, expired or revoked" if parsed(text) else "must be what `afterimage keys create` printed"
            raise UnauthenticatedError(f"key: {said}")
        expires = int(time.time()) + LIFETIME_S
        return f"{key.id}.{expires}.{self._signature(key, expires)}"

    def csrf(self, cookie: str) -> str:
        """Return the token that requests of this session send beside the cookie, if they change anything."""
        return self._sign(f"csrf\n{cookie}")

    def principal(self, scope: Scope) -> tuple[Principal, ApiKey | None]:
        """Return who sends a request of the console, and the session's key; None without a session.

        Raises UnauthenticatedError, PermissionDeniedError for a change without its token, and RateLimitError for a
        change above the key's rate, or a list of jobs above LISTS_RATE. Pages read many small images, so other reads
        do not count.
        """
        if scope["path"] == LOGIN:
            return _NOBODY, None
        cookie, headers = cookie_of(scope), Headers(scope=scope)
        key = self._key(cookie)
        changes = scope["method"] not in ("GET", "HEAD")
        if changes and not hmac.compare_digest(
            headers.get(CSRF, "").encode(), self.csrf(cookie if key else "").encode()
        ):
            raise PermissionDeniedError(f"{CSRF}: must be the token of this session; load the page again")
        if key is not None:
            if changes:
                self._door.count(key, scope["path"])
            elif scope["path"] == LISTS:
                self._lists.use(key.id, LISTS_RATE, time.monotonic())
            return key.principal, key
        if self._key_needed:
            raise UnauthenticatedError("the console needs a session: sign in with a key of `afterimage keys create`")
        return ANONYMOUS, None

    def holds(self, scope: Scope) -> bool:
        """Return whether the request has the session of a live key."""
        return self._key(cookie_of(scope)) is not None

    def left_s(self, scope: Scope) -> float:
        """Return the seconds until the session ends, if its key does not end before; infinite without a session."""
        found = _TOKEN.fullmatch(cookie_of(scope))
        return int(found[2]) - time.time() if found and self.holds(scope) else math.inf

    def _key(self, cookie: str) -> ApiKey | None:
        found = _TOKEN.fullmatch(cookie)
        key = self._door.live(found[1]) if found else None
        if found is None or key is None or time.time() >= int(found[2]):
            return None
        same = hmac.compare_digest(cookie.rpartition(".")[2], self._signature(key, int(found[2])))
        return key if same else None

    def _signature(self, key: ApiKey, expires: int) -> str:
        # with the digest, the secret alone makes no session: who has it lacks the catalog
        return self._sign(f"session\n{key.id}\n{expires}\n{key.digest}")

    def _sign(self, text: str) -> str:
        return urlsafe_b64encode(hmac.digest(self._secret, text.encode(), "sha256")).decode().rstrip("=")


def cookie_of(scope: Scope) -> str:
    """Return the session's cookie; empty without one."""
    jar: SimpleCookie = SimpleCookie()
    try:
        for header in Headers(scope=scope).getlist("cookie"):
            jar.load(header)
    except CookieError:
        return ""
    return jar[COOKIE].value if COOKIE in jar else ""
