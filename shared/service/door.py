"""The door: who may call which method of a public address, decided before a request is read."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import grpc
from cachetools import TTLCache

from shared.catalog import Catalog
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    PermissionDeniedError,
    RateLimitError,
    UnauthenticatedError,
    UnavailableError,
)
from shared.domain.identity import (
    ANONYMOUS,
    ApiKey,
    Principal,
    Role,
    digest,
    looks_like_key,
    parsed,
)
from shared.runtime import rpc, rpc_server
from shared.runtime.audit import REFUSALS, local_actor, record, recorded
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.runtime.tls import OPERATOR, mesh_name
from shared.service.first_key import make_first_key
from shared.service.open_calls import OpenCalls
from shared.service.rates import Buckets
from shared.service.tokens import Tokens, looks_like_token

AUTHORIZATION = "authorization"
"""Name of the call metadata with the key: `Bearer aik_…`."""
EVERY_S = 2.0
"""Seconds between two readings of the keys: a revoked key ends, and a new one works, within this time and a query."""
LOG_EVERY_S = 10.0
"""Least seconds between two log lines of refused calls: a flood of them fills no disk."""
AUDITED, AUDITED_S = 10, 3600.0
"""Most lines of a caller's refused calls in the audit log within so many seconds: a flood of them hides no others'."""
OPEN = "/grpc.health.v1.Health/"
"""Methods without a key: probes."""
REFLECTION = "/grpc.reflection."
CLIENTS = frozenset({Role.USER, Role.TENANT_ADMIN})
"""Roles that may generate and read jobs."""
ALLOWED: tuple[tuple[str, frozenset[Role]], ...] = (
    ("/afterimage.gateway.v1.GatewayService/Locate", frozenset({Role.OPERATOR})),
    ("/afterimage.gateway.v1.GatewayService/Erase", CLIENTS | {Role.OPERATOR}),
    ("/afterimage.gateway.v1.GatewayService/", CLIENTS),
    (REFLECTION, frozenset(Role)),
    ("/", frozenset({Role.OPERATOR})),
)
"""Roles, one of which a method needs, by the beginning of its name; the first that fits holds."""

SHOWN = "x509_subject_alternative_name"
"""Property of a call's peer: the DNS names of its certificate."""

_calling: ContextVar[Principal] = ContextVar("calling", default=ANONYMOUS)


def calling() -> Principal:
    """Return the principal of the current call. Calls between the services of a process are anonymous."""
    return _calling.get()


def actor_of(context: Any) -> str:
    """Return the caller for the audit log: tenant/subject of its key; over a UNIX socket without a key the account that
    runs this process, to which its sockets belong; or, of another call without a key, the names in its certificate
    and its peer.

    context: of the gRPC call; None for a call from within the process.
    """
    who = calling()
    if who.subject:
        return f"{who.tenant}/{who.subject}"
    if context is None:
        return "this process"
    if context.peer().startswith("unix:"):
        return local_actor()
    shown = ", ".join(sorted(certificate_names(context)))
    return f"{f'certificate {shown}' if shown else 'anonymous'} at {context.peer()}"


def certificate_names(context: Any) -> frozenset[str]:
    """Return the DNS names in the certificate of a call's peer; none without one. context: of the gRPC call."""
    return frozenset(name.decode(errors="replace") for name in context.auth_context().get(SHOWN, ()))


def operator_recorded(
    context: Any, data_dir: Path, action: str, target: str
) -> contextlib.AbstractContextManager[object]:
    """Record a call that an operator makes, with a key or the operator's certificate, as `recorded` does. The services'
    own calls of the same method leave no line."""
    if calling().subject or mesh_name(OPERATOR) in certificate_names(context):
        return recorded(data_dir, actor=actor_of(context), action=action, target=target)
    return contextlib.nullcontext()


def loopback(address: str) -> bool:
    """Return whether only this machine reaches an address to listen on."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return address.startswith("unix:") or host == "localhost"


def keys_needed(settings: Settings, address: str) -> bool:
    """Return whether every call of this address needs a key (setting `allow_anonymous`)."""
    return settings.allow_anonymous == "never" or (settings.allow_anonymous == "loopback" and not loopback(address))


def check_guarded(settings: Settings, setting: str = "listen") -> None:
    """Raise ConfigurationError for an address on the network without keys and TLS; log a warning if that is wanted.

    setting: name of the setting with the address.
    """
    address = str(getattr(settings, setting))
    if loopback(address):
        return
    if settings.allow_anonymous == "always":
        log("door").warning(
            "ANYONE who reaches this address may generate, and read what callers without a key made",
            listen=address,
            because="allow_anonymous=always",
        )
    elif settings.tls_certificate:
        return
    elif settings.tls_proxy:
        log("door").warning(
            "keys arrive in plain text: let NOBODY but the proxy reach this address",
            listen=address,
            because="tls_proxy=true",
        )
    else:
        raise ConfigurationError(
            f"{setting}: {address} is on the network, so it needs TLS (tls_certificate, tls_key) and API keys; or set "
            "AFTERIMAGE_TLS_PROXY=true where a proxy in front ends TLS, or AFTERIMAGE_ALLOW_ANONYMOUS=always where "
            "only trusted machines reach it, or listen on 127.0.0.1"
        )


class Refusals:
    """Counts refused calls, and logs at most one of them in LOG_EVERY_S seconds."""

    def __init__(self) -> None:
        self._unlogged, self._log_at = 0, 0.0

    def note(self, error: AfterimageError, call: str) -> None:
        METRICS.door_refused.labels(error.code).inc()
        self._unlogged += 1
        now = time.monotonic()
        if now >= self._log_at:
            log("door").warning("call refused", call=call[:100], why=str(error), refused=self._unlogged)
            self._unlogged, self._log_at = 0, now + LOG_EVERY_S


class Door(grpc.aio.ServerInterceptor):
    """Refuses a call before its request is received, or runs it as the principal of its key.

    The live keys are in memory, so a call costs a hash and no query. While the catalog is away the last keys hold.
    """

    def __init__(self, catalog: Catalog, settings: Settings, tokens: Tokens | None = None, *, needed: bool) -> None:
        """tokens: those of an identity provider count, too; needed: a call without a key is refused."""
        self._keys, self._settings, self._needed = catalog.keys, settings, needed
        self._live: Mapping[str, ApiKey] = {}
        self._tokens = tokens
        ended = f"{AUTHORIZATION}: this key ended during the call; {_WHERE}"
        self._refusals = Refusals()
        self.calls = OpenCalls(ended, lambda tenant: settings.limits_of(tenant).calls, self._refusals.note)
        self._of_keys, self._of_tenants = Buckets("key"), Buckets("tenant")
        self._audited: TTLCache[str, int] = TTLCache(10_000, AUDITED_S)

    async def open(self, *, bootstrap: bool) -> None:
        """Read the keys. bootstrap: make the first one if there never was one."""
        if bootstrap:
            await make_first_key(self._keys, self._settings.data_dir)
        await self._read()
        if self._tokens is not None:
            await self._tokens.refresh()

    async def run(self) -> None:
        """Read the keys again and again, until cancelled."""
        refreshing = asyncio.create_task(self._tokens.run()) if self._tokens is not None else None
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                try:
                    async with asyncio.timeout(EVERY_S):
                        await self._read()
                except Exception as error:  # read again at the next round
                    log("door").warning("keys not read", error=repr(error))
        finally:
            if refreshing is not None:
                refreshing.cancel()

    async def _read(self) -> None:
        try:
            self._live = {key.id: key for key in await self._keys.live()}
        finally:
            self.calls.keep(self._live)
        for buckets in (self._of_keys, self._of_tenants):
            buckets.tidy(time.monotonic())

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        if not details.method.startswith(OPEN):
            given = [value for name, value in details.invocation_metadata or () if name == AUTHORIZATION]
            needed = next(roles for start, roles in ALLOWED if details.method.startswith(start))
            try:
                name = details.method.rpartition("/")[2]
                key = self.key_of(given, needed, name, key_needed=self._needed)
            except AfterimageError as error:
                handler = await continuation(details)
                return _refusal(error, read_on=handler is not None and handler.request_streaming)
            _calling.set(key.principal if key else ANONYMOUS)
            if key is not None:
                return self.calls.under(key, await continuation(details), name)
        return await continuation(details)

    def key_of(self, given: Sequence[Any], needed: frozenset[Role], call: str, *, key_needed: bool) -> ApiKey | None:
        """Return the key or token of a call; None for an anonymous caller. Raises UnauthenticatedError,
        PermissionDeniedError, and RateLimitError above the rate of the key or of its tenant.

        given: values of `authorization`; needed: roles, one of which the call needs; call: its name, for the message;
        key_needed: the address takes no anonymous calls.
        """
        try:
            key = self._named(given) if given or key_needed else None
            who = key.principal if key else ANONYMOUS
            if key is not None:
                self._take(key)
            if not who.roles & needed:
                error = PermissionDeniedError(f"{call[:100]}: needs a key with the role {' or '.join(sorted(needed))}")
                if needed == {Role.OPERATOR}:
                    self.note_refused(f"{who.tenant}/{who.subject}", call, error.code)
                raise error
        except (UnauthenticatedError, PermissionDeniedError, RateLimitError, UnavailableError) as error:
            self._refusals.note(error, call)
            raise
        return key

    def takes(self, authorization: str) -> bool:
        """Return whether this header is for Afterimage, and not a key of another service."""
        token = self._tokens is not None and looks_like_token(authorization.partition(" ")[2])
        return token or looks_like_key(authorization)

    def note_refused(self, actor: str, call: str, outcome: str, target: str = "") -> None:
        """Record who was refused an operator's method, or an erasure: at most AUDITED lines in AUDITED_S seconds of
        each key, and of all callers without one together."""
        caller = actor.partition(" at ")[0]  # not its port
        if (lines := self._audited.get(caller, 0)) < AUDITED:
            self._audited[caller] = lines + 1
            said = {"action": f"refused {call[:100]}", "target": target, "outcome": outcome}
            record(self._settings.data_dir, actor=actor, **said, file=REFUSALS)

    def count(self, key: ApiKey, call: str) -> None:
        """Count one call of a live key that `principal` did not let in. Raises RateLimitError above a rate."""
        try:
            self._take(key)
        except RateLimitError as error:
            self._refusals.note(error, call)
            raise

    def _take(self, key: ApiKey) -> None:
        now, tenant = time.monotonic(), key.principal.tenant
        rate = self._settings.limits_of(tenant).rate
        self._of_tenants.check(tenant, rate, now)  # what the tenant's rate refuses costs the key nothing
        self._of_keys.check(key.id, key.rate, now)
        self._of_keys.take(key.id, key.rate, now)
        self._of_tenants.take(tenant, rate, now)

    def live(self, key_id: str) -> ApiKey | None:
        """Return the key with this id; None for one that is unknown, revoked or expired."""
        key = self._live.get(key_id)
        return None if key is None or key.expired(time.time()) else key

    def _named(self, given: Sequence[Any]) -> ApiKey:
        if not given:
            raise UnauthenticatedError(f"{AUTHORIZATION}: no key was sent; {_WHERE}")
        if len(given) != 1:
            raise UnauthenticatedError(f"{AUTHORIZATION}: must be one `Bearer KEY` (got {len(given)}); {_WHERE}")
        scheme, _, text = str(given[0]).partition(" ")
        if self._tokens is not None and scheme.lower() == "bearer" and looks_like_token(text):
            return self._tokens.read(text)
        id_and_secret = parsed(text) if scheme.lower() == "bearer" else None
        if id_and_secret is None:
            raise UnauthenticatedError(f"{AUTHORIZATION}: must be `Bearer KEY` with a key of Afterimage; {_WHERE}")
        key = self._live.get(id_and_secret[0])
        same = hmac.compare_digest(digest(id_and_secret[1]), key.digest if key else _NOBODY)
        if not same or key is None or key.expired(time.time()):
            raise UnauthenticatedError(f"{AUTHORIZATION}: this key is unknown, expired or revoked; {_WHERE}")
        return key


_WHERE = "`afterimage keys create` makes one, and clients read it from AFTERIMAGE_API_KEY"
_NOBODY = digest("")


def _refusal(error: AfterimageError, *, read_on: bool) -> Any:
    """Return a handler that ends the call. A handler of streams starts before gRPC receives the first message.

    read_on: the caller sends a stream, which is read and dropped first."""
    status = rpc.to_status(error)

    async def refuse(requests: Any, context: Any) -> None:
        if read_on:
            await rpc_server.read_on(requests)
        rpc_server.end_with(status, context)

    return grpc.stream_stream_rpc_method_handler(refuse)
