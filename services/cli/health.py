"""`afterimage health`: does it serve? For container health checks and scripts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.connection import address_of
from shared.domain.errors import AfterimageError, DeadlineError, UnavailableError
from shared.runtime.addresses import NothingListensError, unreachable
from shared.runtime.settings import Settings

TIMEOUT_S = 3.0
EXAMPLE = "afterimage.gateway.v1.GatewayService"


def trouble(address: str, code: grpc.StatusCode, service: str = "") -> AfterimageError:
    """What a health check of `service` (empty: the process) that failed with `code` means, and what to do."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:  # the port is taken first, and answered when the models are loaded
        rule = f"takes connections and has not answered within {TIMEOUT_S:g} s"
        return DeadlineError(f"{address}: {rule}: it is still starting, or very busy; ask again in a few seconds")
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(
            f"{address}: nothing answers there; start it with `afterimage up` (a start takes some seconds)"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return UnavailableError(f"{address}: no service called {service!r} runs there; names are full: {EXAMPLE}")
    return UnavailableError(f"{address}: something that is not Afterimage answers there ({code.name})")


def health(
    target: Annotated[str | None, typer.Option(help="host:port of a running Afterimage.")] = None,
    service: Annotated[
        str,
        typer.Option(
            help="A service's full gRPC name: is it ready, or is a server that it needs away? Empty: the process."
        ),
    ] = "",
) -> None:
    """Say whether Afterimage serves, by the standard gRPC health service.

    Exit code 0 when it does, 75 while it starts (or is too busy to answer), 69 when it is not there, shuts down, or is
    not ready.

    [bold]Examples[/bold]

      afterimage health --target 127.0.0.1:50051

      afterimage health --service afterimage.gateway.v1.GatewayService
    """
    address = address_of(target, Settings())
    if (why := asyncio.run(unreachable(address))) is not None and not isinstance(why, NothingListensError):
        raise why
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise trouble(address, error.code(), service) from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        what = "a server that it needs is away, or it is shutting down" if service else "it is shutting down"
        raise UnavailableError(f"{address}: not serving: {what}")
    typer.echo(f"{address}: serving")
