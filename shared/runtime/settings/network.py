"""Network: the addresses that services listen on and call, and the limit of one message."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.runtime.settings.section import Names, Seconds, Section


class Network(Section):
    """Addresses. The defaults serve everything from one process."""

    listen: str = Field(
        "127.0.0.1:50051",
        description="Public gRPC address host:port, of the gateway or of a service that runs alone. Port 0 takes any "
        "free port.",
    )
    allow_anonymous: Literal["loopback", "always", "never"] = Field(
        "loopback",
        description="Whether `listen` takes calls without an API key: `loopback` only on an address that this machine "
        "alone reaches, `always`, or `never`. A given key is always checked.",
    )
    public_tenants: Names = Field(
        (),
        description="Tenants that start from public entries of others, and whose keys with the role `publisher` may "
        "write such entries; `*` for all. Names separated by commas.",
    )
    tls_certificate: str = Field(
        "", description="PEM file with the certificate chain of `listen`. A changed file is used without a restart."
    )
    tls_key: str = Field("", description="PEM file with the private key of `tls_certificate`. Empty: no TLS.")
    embedder_address: str = Field(
        "",
        description="Address host:port of the embedder where it runs in a process of its own. Several replicas: "
        "ip:port,ip:port, or one host name for all.",
    )
    match_predictor_address: str = Field(
        "",
        description="Address host:port of the match predictor where it runs in a process of its own. Several "
        "replicas: ip:port,ip:port, or one host name for all.",
    )
    retriever_address: str = Field(
        "",
        description="Address host:port of the retriever where it runs in a process of its own. Several replicas: "
        "ip:port,ip:port, or one host name for all.",
    )
    text_extractor_address: str = Field(
        "",
        description="Address host:port of the text extractor where it runs in a process of its own. Several "
        "replicas: ip:port,ip:port, or one host name for all.",
    )
    cache_maintainer_address: str = Field(
        "", description="Address host:port of the cache maintainer that `afterimage cache` calls."
    )
    global_monitor_address: str = Field(
        "", description="Address host:port of the global monitor that `afterimage monitor` calls."
    )
    call_timeout_s: Seconds = Field(
        2.0,
        description="Seconds that one call to the embedder, match predictor or retriever may take. After that the "
        "gateway plans without that service.",
    )
    max_message_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        description="Bytes of one gRPC message at most, its image included. Both ends must allow the size.",
    )

    def shares(self, tenant: str) -> bool:
        """Return whether the tenant shares public entries with others."""
        return "*" in self.public_tenants or tenant in self.public_tenants
