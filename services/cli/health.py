"""`afterimage health`: does it serve? For container health checks and scripts."""

from __future__ import annotations

from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.connection import address_of
from shared.errors import UnavailableError
from shared.settings import Settings

TIMEOUT_S = 3.0


def health(
    target: Annotated[str | None, typer.Option(help="host:port of a running Afterimage.")] = None,
) -> None:
    """Say whether Afterimage serves, by the standard gRPC health service; exit code 69 when it does not.

    [bold]Example[/bold]

      afterimage health --target 127.0.0.1:50051
    """
    address = address_of(target, Settings())
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise UnavailableError(f"{address}: {error.code().name}; start it with `afterimage up`") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise UnavailableError(f"{address}: not serving")
    typer.echo(f"{address}: serving")
