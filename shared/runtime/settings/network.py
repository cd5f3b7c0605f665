"""Network: the addresses that services listen on and call, and the limit of one message."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from shared.runtime.settings.section import Names, Seconds, Section

HTTP_LISTEN = "127.0.0.1:8000"
"""Default of `http_listen`."""


class Network(Section):
    """Addresses. The defaults serve everything from one process."""

    listen: str = Field(
        "127.0.0.1:50051",
        description="Public gRPC address host:port, of the gateway or of a service that runs alone. Port 0 takes any "
        "free port.",
    )
    health_listen: str = Field(
        "",
        description="Address host:port of the gRPC health service alone, without TLS and keys, for probes that have "
        "neither, such as Kubernetes'. Empty: none; `listen` has the health service in any case.",
    )
    http_listen: str = Field(
        HTTP_LISTEN,
        description="Address host:port of the gateway's HTTP API. Port 0 takes any free port. Empty: no HTTP. Where "
        "another process has the default port, the gateway starts without HTTP and logs a warning.",
    )
    http_hosts: Names = Field(
        (),
        description="Host names by which clients reach `http_listen`, besides `localhost` and IP addresses; `*` for "
        "all. Other names are refused, which stops DNS rebinding. Empty where every call needs a key: all names. Names "
        "separated by commas.",
    )
    http_origins: Names = Field(
        (),
        description="Origins, as in `https://example.com`, whose web pages may call the HTTP API (CORS). Pages of "
        "other origins are refused. Origins separated by commas.",
    )
    http_public_url: str = Field(
        "",
        description="Address that the HTTP API's image URLs begin with, as in `https://images.example.com`. Empty: "
        "the address that the client called. Set it behind a proxy that ends TLS: pages of this address may call, too.",
    )
    http_url_secret: SecretStr = Field(
        SecretStr(""),
        description="Secret that signs image URLs, 32 characters or more. Replicas need the same one. Empty: the file "
        "`url-secret` in `data_dir`, which the first start makes.",
    )
    http_url_lifetime_s: Seconds = Field(3600.0, description="Seconds for which a signed image URL works.")
    allow_anonymous: Literal["loopback", "always", "never"] = Field(
        "loopback",
        description="Whether `listen` and `http_listen` take calls without an API key: `loopback` only on an address "
        "that this machine alone reaches, `always`, or `never`. A given key is always checked.",
    )
    tls_proxy: bool = Field(
        False,
        description="Whether a proxy in front ends TLS: an address on the network then needs keys and no certificate. "
        "Only the proxy may reach `listen` and `http_listen`, because keys arrive there in plain text.",
    )
    tls_certificate: str = Field(
        "",
        description="PEM file with the certificate chain of `listen` and `http_listen`. A changed file is used without "
        "a restart.",
    )
    tls_key: str = Field("", description="PEM file with the private key of `tls_certificate`. Empty: no TLS.")
    jwt_issuer: str = Field(
        "",
        description="Claim `iss` of the identity provider whose tokens are taken beside API keys. Empty: keys alone.",
    )
    jwt_audience: str = Field("", description="Claim `aud` that the provider's tokens must have.")
    jwt_keys: str = Field(
        "",
        description="The provider's keys (JWKS): its https:// address, or a file. Read again every five minutes, and "
        "when a token names an unknown key.",
    )
    mesh_certificates: str = Field(
        "",
        description="Folder that has one folder for each service that runs here, as in `match-predictor`, with the PEM "
        "files `tls.crt`, `tls.key` and `ca.crt`: services in processes of their own then call each other by mutual "
        "TLS. A process of several services uses `gateway` for calls to others, and commands `operator`. Changed files "
        "are used without a restart. Empty: plain text.",
    )
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
        "",
        description="Address host:port of the cache maintainer that `afterimage cache` and gateways call. Without it, "
        "a gateway in a process of its own cannot erase.",
    )
    global_monitor_address: str = Field(
        "",
        description="Address host:port of the global monitor that `afterimage monitor` and the gateway's console call.",
    )
    call_timeout_s: Seconds = Field(
        2.0,
        description="Seconds that one call to the embedder, match predictor or retriever may take. After that the "
        "gateway plans without that service.",
    )
    max_message_bytes: int = Field(
        64 * 2**20,
        ge=2**16,
        description="Bytes of one gRPC message at most, its image included. Both ends must allow the size. "
        "Only the embedder receives whole images: a request to the gateway has two prompts of max_prompt_chars and "
        "128 KiB at most, one to another service 16 prompts.",
    )
