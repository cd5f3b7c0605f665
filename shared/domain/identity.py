"""Identity: API keys, their roles, and the principal that a key names. ADR 24 has the design."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shared.domain.errors import InvalidRequestError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Tenants and subjects. One pattern without a slash keeps the keys made of several names unambiguous."""
BOOTSTRAP = "bootstrap"
"""Id of the key that the first start makes."""
_PREFIX = "aik_"
_TEXT = re.compile(r"aik_([a-z0-9]{1,32})\.([A-Za-z0-9_-]{43})")
_SUBJECT, _HASHED = "key:", "sub-"
MOST_PER_S, MOST_BURST = 10_000, 1_000_000
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/(s|min|h)")


class Role(StrEnum):
    """What a key may do: generate and read its own jobs, let other tenants start from its images, read its tenant's
    jobs, or operate the services."""

    USER = "user"
    PUBLISHER = "publisher"
    TENANT_ADMIN = "tenant-admin"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Principal:
    """Who calls. tenant: empty for an anonymous caller, who may name one; subject: empty for an anonymous caller."""

    tenant: str
    subject: str
    roles: frozenset[Role]


ANONYMOUS = Principal("", "", frozenset({Role.USER, Role.PUBLISHER, Role.OPERATOR}))
"""A caller without a key, where the settings allow that: it sees the jobs of anonymous callers alone."""


@dataclass(frozen=True)
class Rate:
    """The calls that a key may send: `per_s` per second on average, and at most `burst` at once."""

    per_s: float
    burst: int

    def __str__(self) -> str:
        unit, seconds = next((one for one in _UNITS.items() if self.per_s * one[1] >= 1), ("h", 3600.0))
        return f"{self.per_s * seconds:.6g}/{unit}, burst {self.burst}"


def rate_of(text: str, burst: int | None = None) -> Rate:
    """Return the rate of a text such as `2/s`, `30/min` or `500/h`. Raises InvalidRequestError.

    burst: calls at once; None: as many as come in ten seconds, at least 1.
    """
    found = _RATE.fullmatch(text)
    per_s = float(found[1]) / _UNITS[found[2]] if found else 0.0
    if not 0 < per_s <= MOST_PER_S:
        raise InvalidRequestError("rate", f"must be calls per s, min or h, such as 2/s, up to {MOST_PER_S}/s", text)
    if burst is None:
        burst = max(math.ceil(10 * per_s), 1)
    if not 1 <= burst <= MOST_BURST:
        raise InvalidRequestError("burst", f"must be from 1 to {MOST_BURST}", burst)
    return Rate(per_s, burst)


@dataclass(frozen=True)
class ApiKey:
    """One key as the catalog has it, without its secret. Times are Unix seconds; None: never."""

    id: str
    """Empty for a token of an identity provider, which the catalog does not have."""
    digest: str
    principal: Principal
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    replaces: str | None = None
    """Id of the key from which this one was rotated."""
    rate: Rate | None = None
    """None: no limit."""

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def issued(principal: Principal, key_id: str = "", rate: Rate | None = None) -> tuple[ApiKey, str]:
    """Return a new key and its text, which has the only copy of the secret: 32 random bytes."""
    key_id, secret = key_id or secrets.token_hex(8), secrets.token_urlsafe(32)
    return ApiKey(key_id, digest(secret), principal, rate=rate), f"{_PREFIX}{key_id}.{secret}"


def digest(secret: str) -> str:
    """Return the sha256 of a secret. Its 256 random bits need no slow hash and no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def parsed(text: str) -> tuple[str, str] | None:
    """Return id and secret of a key's text; None for any other text."""
    found = _TEXT.fullmatch(text)
    return (found[1], found[2]) if found else None


def looks_like_key(authorization: str) -> bool:
    """Return whether an `Authorization` header has a key of Afterimage, and not one of another service."""
    return authorization.partition(" ")[2].startswith(_PREFIX)


def principal_of(tenant: str, subject: str, roles: Iterable[str]) -> Principal:
    """Return the principal of a new key. Raises InvalidRequestError for a wrong name or role, and without a role."""
    for field, name in (("tenant", tenant), ("subject", subject)):
        if not NAME.fullmatch(name):
            raise InvalidRequestError(field, "must be 1 to 64 letters, digits, dots, dashes or underscores", name)
    given = list(roles)
    if not given or not set(given) <= set(Role):
        raise InvalidRequestError("role", f"must be one or more of {', '.join(Role)}", ", ".join(given))
    return Principal(tenant, subject, frozenset(map(Role, given)))


def kept_subject(named: str) -> str:
    """Return the subject of a provider's user: the name itself, or a hash of a name with other characters."""
    if NAME.fullmatch(named) and not named.startswith(_HASHED):
        return named
    return f"{_HASHED}{digest(named)[:32]}"


def under(subject: str, label: str) -> str:
    """Return the user of a request: the client's label under its subject; the label alone for an anonymous caller.

    Raises InvalidRequestError for an anonymous label that looks like a subject's.
    """
    if subject:
        return f"{_SUBJECT}{subject}/{label}"
    if label.startswith(_SUBJECT):
        raise InvalidRequestError("user", f"must not begin with {_SUBJECT}, which marks the subjects of keys", label)
    return label


def subject_of(user: str) -> str:
    """Return the subject of a stored user; empty for an anonymous one."""
    return user.removeprefix(_SUBJECT).partition("/")[0] if user.startswith(_SUBJECT) else ""


def is_user(stored: str, named: str) -> bool:
    """Return whether a stored user is the named one: a subject with all its labels, or one `subject/label`.
    The same label of an anonymous caller counts, too. named: its subject as stored, or as its provider names it."""
    subject, slash, label = named.partition("/")
    whole = f"{_SUBJECT}{kept_subject(named)}/", *(() if slash else (f"{_SUBJECT}{named}/",))
    return stored.startswith(whole) or stored in (named, f"{_SUBJECT}{named}", under(kept_subject(subject), label))


def same_caller(tenant: str, user: str, other_tenant: str, other_user: str) -> bool:
    """Return whether two stored users are one caller: one subject, or the anonymous callers, of one tenant."""
    return tenant == other_tenant and subject_of(user) == subject_of(other_user)


def label_of(user: str) -> str:
    """Return the label that the client gave."""
    return user.partition("/")[2] if user.startswith(_SUBJECT) else user
