"""Health check of a container: exit code 0 when the gRPC health service reports SERVING.

It asks the address of `health_listen`, which has no TLS and needs no key. This script runs every few seconds in every
container, and takes a sixth of the processor time of `afterimage health`.
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 10.0

if __name__ == "__main__":
    address = f"127.0.0.1:{os.environ['AFTERIMAGE_HEALTH_LISTEN'].rpartition(':')[2]}"
    try:
        with grpc.insecure_channel(address) as channel:
            asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        sys.exit(f"{address}: {error.code().name}")
    if asked.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(f"{address}: not serving")
