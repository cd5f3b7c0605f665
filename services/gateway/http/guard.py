"""The check of each HTTP request before it is parsed: host, origin, key, size and time of its body."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.api import HELD, ClientGoneError
from services.gateway.http.errors import HttpError, answer_of
from services.gateway.http.events import EVENTS, error_event
from services.gateway.http.forms import MULTIPART, media_type
from services.gateway.http.identity import Callers, caller, principal
from services.gateway.uploads import RECEIVE_S, Receiving
from shared.domain.errors import AfterimageError
from shared.domain.ids import new_id
from shared.runtime import tracing
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service.door import keys_needed

GONE = 499
"""Status in metrics of a request whose client left before the answer began."""
BODY_S = 30.0
"""Seconds in which a body without files must arrive."""
LAST_S = 1.0
"""Seconds for the last event of a stream whose key ended; a client that does not read it is disconnected."""
_UPLOADS = ("/v1/images/edits", "/v1/videos", "/console/api/edits")
"""Paths whose forms may have files."""
_BODILESS = ("GET", "HEAD")
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_FIELDS_BYTES, _CHAR_BYTES = 2**16, 12
"""Most bytes of all fields but the two prompts; most bytes of a character in JSON (two escaped surrogates)."""


@dataclass(frozen=True)
class Rules:
    """What the guard lets through."""

    hosts: frozenset[str] | None
    """Host names besides localhost and IP addresses; None: all."""
    origins: frozenset[str]
    """Origins whose pages may call, besides the address that a request names: those of the setting, and that of
    `http_public_url`, where a proxy ends TLS."""
    most_bytes: int
    upload_bytes: int
    """Bytes of files, beside those of all fields."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        hosts = frozenset(name.lower() for name in settings.http_hosts)
        # a page that rebinds its name to this machine has no key; without keys, its name gives it away
        every = "*" in hosts or (not hosts and keys_needed(settings, settings.http_listen))
        most_bytes = _FIELDS_BYTES + 2 * _CHAR_BYTES * settings.max_prompt_chars
        origins = frozenset([*settings.http_origins, *_origin_of(settings.http_public_url)])
        return cls(None if every else hosts, origins, most_bytes, settings.max_upload_bytes)

    def most_of(self, scope: Scope) -> int:
        """Return the bytes of a body at most."""
        if scope["method"] in _BODILESS:
            return 0
        return self.most_bytes + (self.upload_bytes if has_files(scope) else 0)

    def check(self, headers: Headers, scheme: str) -> None:
        """Raise HttpError for a host that is not ours, and for a page of another origin."""
        hosts = headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = _name_of(host)
        if name is None:
            raise HttpError(400, "Host: must name the host that the request is for, once", "Host", "bad_host")
        if not (self.hosts is None or name in self.hosts or _always(name)):
            rule = f"Host: {name[:100]!r} is no name of this server; the setting http_hosts lists others"
            raise HttpError(403, rule, "Host", "host_not_allowed", "permission_error")
        for origin in headers.getlist("origin"):
            if origin not in self.origins and origin.lower() != f"{scheme}://{host}":
                rule = f"Origin: pages of {origin[:100]!r} may not call this server; the setting http_origins lists"
                raise HttpError(403, f"{rule} those that may", "Origin", "origin_not_allowed", "permission_error")


def _origin_of(url: str) -> list[str]:
    """Return the origin of this URL's pages as browsers write it; none for an empty URL."""
    parts = urlsplit(url.lower())
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return [f"{parts.scheme}://{parts.netloc.removesuffix(default)}"] if parts.netloc else []


def _needs_caller(scope: Scope) -> bool:
    """Return whether a stranger's request is refused before it is parsed; pages, probes and signed URLs are open."""
    if scope["method"] not in _BODILESS:
        return True
    signed = scope["path"].startswith("/v1/images/") and "signature" in QueryParams(scope["query_string"])
    return scope["path"].startswith("/v1/") and not signed


def has_files(scope: Scope) -> bool:
    """Return whether a request may have files in its body."""
    return scope["path"] in _UPLOADS and media_type(Headers(scope=scope)) == MULTIPART


def _name_of(host: str) -> str | None:
    """Return the name of a Host header without its port; None for a header that is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.hostname and parts.netloc == host and "@" not in host else None


def _always(name: str) -> bool:
    """Return whether no DNS server of somebody else can make a page's name equal to this one."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True


class Guard:
    """Outermost ASGI middleware: it times each request, checks its host and origin, and ends unexpected errors."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, request_id = time.monotonic(), GONE, new_id()
        headers = Headers(scope=scope)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        with tracing.served(method := _method(scope), headers, {"url.scheme": scope["scheme"]}) as span:
            try:
                self._rules.check(headers, scope["scheme"])
                await self._app(scope, receive, noted)
            except Exception as error:  # the application has logged and answered its own
                if status == GONE:
                    await answer_of(error)(scope, receive, noted)
            finally:
                route = getattr(scope.get("route"), "path", "none")  # a pattern, so labels stay few
                METRICS.http_seconds.labels(route, str(status)).observe(time.monotonic() - start)
                _describe(span, method, route, status)


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in _METHODS else "_OTHER"


def _describe(span: tracing.Span, method: str, route: str, status: int) -> None:
    """Set what OpenTelemetry's conventions for HTTP name; no path or query, which may hold what a client made up."""
    span.note("http.request.method", method)
    if route != "none":
        span.rename(f"{method} {route}")
        span.note("http.route", route)
    if status != GONE:
        span.note("http.response.status_code", status)
    if status >= 500:
        span.fail(str(status))


class Admission:
    """Inner ASGI middleware: it checks the caller's key, and then reads a body of bounded size in bounded time. Bodies
    with files are few at once; each counts until its jobs are accepted.

    A request whose key ends is answered with that; a stream of events has it as its last event.
    """

    def __init__(self, app: ASGIApp, rules: Rules, callers: Callers, receiving: Receiving) -> None:
        self._app, self._rules, self._callers, self._receiving = app, rules, callers, receiving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Headers | None = None

        async def sent(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = Headers(raw=message["headers"])
            await send(message)

        try:
            with self._callers.noted(scope), contextlib.ExitStack() as held:
                if _needs_caller(scope):
                    principal(scope)
                    if has_files(scope):
                        who = caller(Request(scope))
                        held.enter_context(self._receiving.by(who.tenant, who.subject))
                        scope[HELD] = held
                receive = await _bounded(scope, receive, self._rules.most_of(scope))
                await self._app(scope, receive, sent)
        except ClientGoneError:
            return
        except (HttpError, AfterimageError) as error:
            if begun is None:
                await answer_of(error)(scope, receive, send)
            elif begun.get("content-type", "").startswith(EVENTS):
                async with asyncio.timeout(LAST_S):
                    await send({"type": "http.response.body", "body": error_event(error), "more_body": False})
            else:
                raise


async def _bounded(scope: Scope, receive: Receive, most: int) -> Receive:
    """Read the body, and return a `receive` that gives it once. Raises HttpError, and ClientGoneError for a client that
    leaves before."""
    given = Headers(scope=scope).get("content-length", "0")
    if given.isdecimal() and int(given[:20]) > most:
        raise _too_large(most)
    body, more, within_s = bytearray(), True, RECEIVE_S if has_files(scope) else BODY_S
    try:
        async with asyncio.timeout(within_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {within_s:g} s", code="request_timeout") from None
    return _after({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _after(first: Message, receive: Receive) -> Receive:
    waiting: Sequence[Message] = [first]

    async def next_one() -> Message:
        nonlocal waiting
        if waiting:
            (message,), waiting = waiting, ()
            return message
        return await receive()

    return next_one


def _too_large(most: int) -> HttpError:
    if most == 0:
        return HttpError(400, "a request of this method has no body", code="body_not_allowed")
    return HttpError(413, f"the body must have at most {most} bytes", code="request_too_large")
