"""`afterimage health`: check whether Afterimage serves, for containers and scripts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.connection import address_of
from shared.client.credentials import blocking_channel
from shared.domain.errors import AfterimageError, UnavailableError
from shared.runtime.addresses import NothingListensError, ended, silent, unreachable
from shared.runtime.settings import Settings

TIMEOUT_S = 3.0
EXAMPLE = "afterimage.gateway.v1.GatewayService"


def trouble(address: str, code: grpc.StatusCode, service: str = "") -> AfterimageError:
    """Return the error for a failed health check, with what to do.

    code: the gRPC status of the check. service: the full name of the checked service; empty: the process.
    """
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:  # a start takes the port first and answers when the models are loaded
        return silent(address, TIMEOUT_S)
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(
            f"{address}: nothing answers there; start it with `afterimage up` (a start takes some seconds)"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return UnavailableError(
            f"{address}: no service called {service!r} runs there; use a full name such as {EXAMPLE}"
        )
    return UnavailableError(
        f"{address}: a server that is not Afterimage answers there ({code.name}); check the address"
    )


def health(
    target: Annotated[str | None, typer.Option(help="host:port of a running Afterimage.")] = None,
    service: Annotated[
        str,
        typer.Option(
            help="Full gRPC name of a service, to check that the servers it needs are there. Empty: the process."
        ),
    ] = "",
) -> None:
    """Check whether Afterimage serves, with the standard gRPC health service.

    Exits with 0 when Afterimage serves, and with 75 while it starts or is too busy to answer. Exits with 69 when it is
    not running, is shutting down, or is not ready.

    [bold]Examples[/bold]

      afterimage health --target 127.0.0.1:50051

      afterimage health --service afterimage.gateway.v1.GatewayService
    """
    address = address_of(target, Settings())
    check_serves(address, service)
    typer.echo(f"{address}: serving")


def check_serves(address: str, service: str = "") -> None:
    """Raise the error of `trouble` unless the process, or the service of this full name, serves."""
    if (why := asyncio.run(unreachable(address))) is not None and not isinstance(why, NothingListensError):
        raise why
    with blocking_channel(address, "") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            cut = ended(address, str(error.details())) if why is None else None
            raise cut or trouble(address, error.code(), service) from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        what = "a server that it needs is away, or it is shutting down" if service else "it is shutting down"
        raise UnavailableError(f"{address}: not serving: {what}; check again in a few seconds")
