"""Checks of callers by the names in their certificates (setting `mesh_certificates`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import grpc

from shared.domain.errors import PermissionDeniedError
from shared.runtime.tls import OPERATOR, mesh_name
from shared.service.door import OPEN, REFLECTION, Refusals, certificate_names
from shared.service.open_calls import within

MayCall: TypeAlias = Mapping[str, Set[str]]
"""Service → names of the methods that it may call."""


class Callers(grpc.aio.ServerInterceptor):
    """Refuses calls but those that the caller's certificate allows. Commands may call every method; probes and
    reflection need any certificate."""

    def __init__(self, may_call: MayCall) -> None:
        self._may_call = {mesh_name(service): methods for service, methods in may_call.items()}
        self._refusals = Refusals()

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
        may = {name for name, methods in self._may_call.items() if call in methods} | {mesh_name(OPERATOR)}
        if not shown & may:
            said = f"the certificate of {', '.join(sorted(shown)) or 'the caller'} may not call {call}"
            error = PermissionDeniedError(f"{said}: only {', '.join(sorted(may))} may")
            self._refusals.note(error, call)
            raise error
        yield
