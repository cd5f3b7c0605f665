"""A private Weaviate of one node, from the installed program.

Weaviate binds HTTP, gossip and raft to the given address, but binds gRPC and the API between its nodes to every
interface. There clients need a key, which is random at each start.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from scripts.stack.servers import HOST, Server, StackError, answers, free_port

HOW_TO_GET_IT = "put the program `weaviate` on PATH (built from github.com/weaviate/weaviate)"


def find() -> str | None:
    """Return the path of `weaviate`; None when it is not on PATH."""
    return shutil.which("weaviate")


def start(folder: Path, host: str = HOST) -> Server:
    """Start a store in `folder`, new or existing."""
    program = find()
    if program is None:
        raise StackError(f"weaviate: not installed; {HOW_TO_GET_IT}")
    folder = folder.absolute()
    http, grpc, gossip, data, raft, raft_rpc = (free_port() for _ in range(6))
    key = secrets.token_hex(16)
    return Server(
        name="weaviate",
        url=f"weaviate://:{key}@{host}:{http}?grpc_port={grpc}",
        folder=folder,
        command=[program, "--host", host, "--port", str(http), "--scheme", "http"],
        environment={
            "PERSISTENCE_DATA_PATH": str(folder / "data"),
            "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "false",
            "AUTHENTICATION_APIKEY_ENABLED": "true",
            "AUTHENTICATION_APIKEY_ALLOWED_KEYS": key,
            "AUTHENTICATION_APIKEY_USERS": "afterimage",
            "AUTHENTICATION_DB_USERS_ENABLED": "true",
            "AUTHORIZATION_RBAC_ENABLED": "true",
            "AUTHORIZATION_RBAC_ROOT_USERS": "afterimage",
            "DEFAULT_VECTORIZER_MODULE": "none",
            "ENABLE_MODULES": "",
            "DISABLE_TELEMETRY": "true",
            "CLUSTER_HOSTNAME": "node1",
            "CLUSTER_BIND_ADDR": HOST,
            "CLUSTER_ADVERTISE_ADDR": HOST,
            "CLUSTER_BASIC_AUTH_USERNAME": "afterimage",
            "CLUSTER_BASIC_AUTH_PASSWORD": secrets.token_hex(16),
            "CLUSTER_GOSSIP_BIND_PORT": str(gossip),
            "CLUSTER_DATA_BIND_PORT": str(data),
            "RAFT_PORT": str(raft),
            "RAFT_INTERNAL_RPC_PORT": str(raft_rpc),
            "RAFT_BOOTSTRAP_EXPECT": "1",
            "RAFT_TIMEOUTS_MULTIPLIER": "1",  # one node waits for no other: it leads after 1 s instead of 5 s
            "GRPC_PORT": str(grpc),
            "GO_PROFILING_DISABLE": "true",
            "PROMETHEUS_MONITORING_ENABLED": "false",
            "LOG_LEVEL": "warning",
        },
        ready=lambda: answers(f"http://{host}:{http}/v1/.well-known/ready"),
    ).start()
