"""Keys stay on this machine, or cross a network by TLS."""

from __future__ import annotations

import pytest

from shared.client import AsyncClient
from shared.client.credentials import PLAIN_TEXT, TLS_CA, check_private
from shared.domain.errors import ConfigurationError
from shared.domain.identity import Role, issued, principal_of

KEY = issued(principal_of("acme", "alice", [Role.USER]))[1]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PLAIN_TEXT, TLS_CA, "AFTERIMAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "target",
    ["unix:/tmp/a.sock", "localhost:50051", "127.0.0.1:50051", "[::1]:50051", "ipv4:127.0.0.1:1", "dns:///localhost:1"],
)
def test_a_key_goes_to_this_machine(target: str) -> None:
    check_private(target, KEY)


@pytest.mark.parametrize(
    "target", ["gateway:50051", "10.0.0.1:1", "ipv4:127.0.0.1:1,10.0.0.1:1", "dns:///127.0.0.1.evil:1", "unixes:1"]
)
async def test_a_key_crosses_no_network_in_plain_text(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_private(target)  # no key
    with pytest.raises(ConfigurationError, match=r"api_key: would go to .* in plain text"):
        AsyncClient(target, api_key=KEY)
    check_private(target, KEY, "system")
    monkeypatch.setenv(PLAIN_TEXT, "1")
    check_private(target, KEY)
