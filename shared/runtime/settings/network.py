"""Network: the addresses that services listen on and call, and the limit of one message."""

from __future__ import annotations

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section


class Network(Section):
    """Addresses. The defaults serve everything from one process."""

    listen: str = Field("127.0.0.1:50051", description="Public gRPC address (gateway, or the service started alone).")
    embedder_address: str = Field(
        "", description="host:port of a service that runs as its own process; replicas: ip:port,ip:port or one name."
    )
    match_predictor_address: str = Field("", description="The same, for the match predictor.")
    retriever_address: str = Field("", description="The same, for the retriever.")
    cache_maintainer_address: str = Field("", description="The maintainer that `afterimage cache` asks.")
    global_monitor_address: str = Field("", description="Where `afterimage monitor` asks a monitor of its own process.")
    call_timeout_s: Seconds = Field(2.0, description="Limit of one call to embedder, predictor or retriever.")
    max_message_bytes: int = Field(64 * 2**20, ge=2**16, description="Limit of one gRPC message, its image included.")
