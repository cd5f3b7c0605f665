"""Who sends an HTTP request: the principal of its key, by the door that gRPC calls pass too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from services.gateway.caller import Caller, caller_of
from services.gateway.console.sessions import API, Sessions
from shared.domain.errors import AfterimageError
from shared.domain.identity import ANONYMOUS, ApiKey, Principal, Role
from shared.runtime.settings import Settings
from shared.service.door import AUTHORIZATION, CLIENTS, Door, keys_needed

_NOTED = "afterimage.principal"


def _roles(scope: Scope) -> frozenset[Role]:
    """Return the roles, one of which a request needs: an operator may erase, as over gRPC."""
    erases = scope["method"] == "DELETE" and scope["path"].startswith("/v1/images/")
    return CLIENTS | {Role.OPERATOR} if erases else CLIENTS


class Callers:
    """Notes each request's principal in its scope, before its body is read."""

    def __init__(self, door: Door, settings: Settings, sessions: Sessions | None = None) -> None:
        """sessions: of the console; None: this server has none."""
        self._door, self._key_needed = door, keys_needed(settings, settings.http_listen)
        self._sessions = sessions

    def noted(self, scope: Scope) -> AbstractContextManager[None]:
        """Note the principal, or the error that `principal` raises then: probes and signed URLs need no key.

        The returned block ends with its key: it raises UnauthenticatedError then.
        """
        given = Headers(scope=scope).getlist(AUTHORIZATION)
        if not self._key_needed:  # OpenAI's clients always send a key, also where there is none to send
            given = [one for one in given if self._door.takes(one)]
        try:
            if self._sessions is not None and scope["path"].startswith(API):
                scope[_NOTED], key = self._sessions.principal(scope)
            elif self._key_needed and not given:  # refused, and counted, only where the path needs a principal
                scope[_NOTED] = partial(self._door.key_of, given, _roles(scope), scope["path"], key_needed=True)
                return nullcontext()
            else:
                key = self._door.key_of(given, _roles(scope), scope["path"], key_needed=self._key_needed)
                scope[_NOTED] = key.principal if key else ANONYMOUS
        except AfterimageError as error:
            scope[_NOTED] = error
            return nullcontext()
        return self._door.calls.noted(key, scope["path"]) if key else nullcontext()


def principal(scope: Scope) -> Principal:
    """Return who sends the request. Raises UnauthenticatedError and PermissionDeniedError."""
    noted: Principal | AfterimageError | Callable[[], ApiKey | None] = scope[_NOTED]
    if isinstance(noted, AfterimageError):
        raise noted
    if isinstance(noted, Principal):
        return noted
    key = noted()
    assert key is not None  # without one it raises
    return key.principal


def caller(request: Request) -> Caller:
    """Return the caller, with the tenant and the idempotency key of its headers."""
    return caller_of(principal(request.scope), request.headers.items())
