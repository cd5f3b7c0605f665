"""Who calls: tenant, subject and idempotency key of a call, and what its key lets it do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.domain.errors import InvalidRequestError, PermissionDeniedError
from shared.domain.identity import NAME, Principal, Role, subject_of
from shared.domain.types import URGENT, Request, Scope
from shared.runtime.settings import Settings

KEY_METADATA = "idempotency-key"
"""Name of the call metadata with a caller's key for a request."""
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
TENANT_METADATA = "tenant"
"""Name of the call metadata with the tenant."""
MOST_PRIORITY = 100


@dataclass(frozen=True)
class Caller:
    """The tenant and subject that call, and their idempotency key. subject: empty for an anonymous caller."""

    tenant: str
    idempotency_key: str = ""
    subject: str = ""
    admin: bool = False
    """Sees the jobs of all subjects of the tenant."""
    publishes: bool = True
    """May write public entries."""
    most_priority: int = MOST_PRIORITY
    """Highest priority of its requests."""

    @property
    def owner(self) -> str:
        """Owner of the idempotency key."""
        return f"{self.tenant}/{self.subject}" if self.subject else self.tenant

    def check_scope(self, request: Request, settings: Settings) -> None:
        """Raise InvalidRequestError for a public request of a tenant that shares nothing, and PermissionDeniedError
        for one of a key that may not publish."""
        if request.scope is not Scope.PUBLIC:
            return
        if not settings.shares(self.tenant):
            rule = "public is for the tenants in the setting public_tenants alone"
            raise InvalidRequestError("scope", rule, f"tenant {self.tenant}")
        if not self.publishes:
            raise PermissionDeniedError(f"scope: public needs a key with the role {Role.PUBLISHER}")

    def clamped(self, request: Request) -> tuple[Request, list[str]]:
        """Return the request with a priority that its key's roles allow, and a warning if this lowers it."""
        most = self.most_priority
        if request.priority <= most:
            return request, []
        why = f"priority: {request.priority} needs a key with the role {Role.TENANT_ADMIN}; {most} is used"
        return replace(request, priority=most), [why]

    def may_see(self, tenant: str, user: str) -> bool:
        """Return whether a job of this tenant and stored user is the caller's, or of an admin's tenant."""
        return tenant == self.tenant and (self.admin or subject_of(user) == self.subject)


def caller_of(who: Principal, metadata: Sequence[tuple[str, Any]]) -> Caller:
    """Return the caller: its key decides, or without one the metadata. Raises InvalidRequestError, and
    PermissionDeniedError for another tenant than the key's.

    metadata: of a gRPC call, or the headers of an HTTP request; names in lower case.
    """
    named = _once(metadata, TENANT_METADATA)
    if who.tenant and named not in ("", who.tenant):
        raise PermissionDeniedError(f"{TENANT_METADATA}: the key belongs to another tenant (got {named[:64]!r})")
    return Caller(
        tenant=who.tenant or check_tenant(named or "default"),
        idempotency_key=check_key(_once(metadata, KEY_METADATA)),
        subject=who.subject,
        admin=Role.TENANT_ADMIN in who.roles,
        publishes=Role.PUBLISHER in who.roles,
        # whose job of the tenant overtakes the others is its admin's decision
        most_priority=MOST_PRIORITY if Role.TENANT_ADMIN in who.roles or not who.subject else URGENT - 1,
    )


def _once(metadata: Sequence[tuple[str, Any]], name: str) -> str:
    values = [value for key, value in metadata if key == name]
    if len(values) > 1:
        raise InvalidRequestError(name, f"must be given once (got {len(values)})")
    return values[0] if values else ""


def check_tenant(tenant: str) -> str:
    """Check a tenant's name. One pattern for all names keeps the scope keys made from them unambiguous."""
    if not NAME.fullmatch(tenant):
        raise InvalidRequestError("tenant", "must be 1 to 64 letters, digits, dots, dashes or underscores", tenant)
    return tenant


def check_key(key: str) -> str:
    """Return the key, which may be empty. Raises InvalidRequestError for an invalid key."""
    if key and not _KEY.fullmatch(key):
        raise InvalidRequestError(KEY_METADATA, "must be 1 to 200 printable ASCII characters without spaces", key)
    return key
