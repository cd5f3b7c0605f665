"""Checks of callers by the names in their certificates (setting `mesh_certificates`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from shared.domain.errors import PermissionDeniedError
from shared.service.door import OPEN, REFLECTION, Refusals, certificate_names
from shared.service.open_calls import within


class Callers(grpc.aio.ServerInterceptor):
    """Refuses calls of other certificates than those with one of these DNS names. Probes and reflection need any."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names, self._refusals = names, Refusals()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if details.method.startswith((OPEN, REFLECTION)):
            return handler
        return within(partial(self._checked, call=details.method.rpartition("/")[2]), handler)

    @contextmanager
    def _checked(self, context: Any, call: str) -> Iterator[None]:
        shown = certificate_names(context)
        if not shown & self._names:
            said = f"the certificate of {', '.join(sorted(shown)) or 'the caller'} may not call this service"
            error = PermissionDeniedError(f"{said}: only {', '.join(sorted(self._names))} may")
            self._refusals.note(error, call)
            raise error
        yield
