"""Checks of callers by the names in their certificates (setting `mesh_certificates`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from shared.domain.errors import PermissionDeniedError
from shared.service.door import OPEN, REFLECTION
from shared.service.open_calls import within

SHOWN = "x509_subject_alternative_name"
"""Property of a call's peer: the DNS names of its certificate."""


class Callers(grpc.aio.ServerInterceptor):
    """Refuses calls of other certificates than those with one of these DNS names. Probes and reflection need any."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        return handler if details.method.startswith((OPEN, REFLECTION)) else within(self._checked, handler)

    @contextmanager
    def _checked(self, context: Any) -> Iterator[None]:
        shown = {name.decode(errors="replace") for name in context.auth_context().get(SHOWN, ())}
        if not shown & self._names:
            said = f"the certificate of {', '.join(sorted(shown)) or 'the caller'} may not call this service"
            raise PermissionDeniedError(f"{said}: only {', '.join(sorted(self._names))} may")
        yield
