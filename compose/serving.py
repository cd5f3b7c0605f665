"""Health check of a container: exit code 0 when the gRPC health service reports SERVING, or the HTTP API over TLS.

The certificate is not checked: it is for the name that clients use, and this process asks itself. This script runs
every few seconds in every container, and takes a sixth of the processor time of `afterimage health`.
"""

import os
import ssl
import sys
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 10.0


def ready(address: str) -> None:
    """Exit with the reason if the HTTP API at this address, which speaks TLS, is not ready."""
    try:
        urllib.request.urlopen(f"https://{address}/ready", timeout=TIMEOUT_S, context=ssl._create_unverified_context())
    except OSError as error:
        sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    if os.environ.get("AFTERIMAGE_TLS_CERTIFICATE"):
        ready(f"127.0.0.1:{os.environ['AFTERIMAGE_HTTP_LISTEN'].rpartition(':')[2]}")
        sys.exit()
    address = f"127.0.0.1:{os.environ['AFTERIMAGE_LISTEN'].rpartition(':')[2]}"
    try:
        with grpc.insecure_channel(address) as channel:
            asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        sys.exit(f"{address}: {error.code().name}")
    if asked.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(f"{address}: not serving")
