"""How a service with replicas is found: its addresses as one gRPC target, asked in turn, the sick ones left out."""

from __future__ import annotations

import ipaddress
import json

from shared.errors import ConfigurationError

BALANCED = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        # a replica that drains or does not serve yet says so through the health service, and gets no calls
        "healthCheckConfig": {"serviceName": ""},
        # a replica that was just killed: the call goes once more, to the next (all our internal calls may be repeated)
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 2,
                    "initialBackoff": "0.02s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    }
)
"""gRPC service config (grpc/doc/service_config.md) of every channel between services."""


def target_of(addresses: str, setting: str) -> str:
    """The gRPC target of `host:port`, of several `ip:port` separated by commas, or of a gRPC name as it is.

    A single host name is looked up with all its addresses (replicas behind one name, as Docker and Kubernetes give).
    """
    several = [address.strip() for address in addresses.split(",") if address.strip()]
    if len(several) == 1:
        return several[0]
    families = {_family(address, setting) for address in several}
    if len(families) != 1:
        raise ConfigurationError(f"{setting}: several addresses must all be IPv4 or all IPv6 (got {addresses!r})")
    return f"{families.pop()}:{','.join(several)}"


def _family(address: str, setting: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
        int(port)
    except ValueError:
        raise ConfigurationError(
            f"{setting}: {address!r} is not ip:port; several replicas are listed by IP address, or share one host name"
        ) from None
    return f"ipv{version}"


def check_address(address: str, setting: str) -> None:
    """Raises ConfigurationError for what nobody could listen on, whatever else runs here."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") and len(address) > len("unix:"):
        return
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        rule = "must be host:port with a port from 0 (any that is free) to 65535, or unix:PATH"
        raise ConfigurationError(f"{setting}: {rule} (got {address!r})")
