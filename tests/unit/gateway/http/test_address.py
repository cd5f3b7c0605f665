"""The address of the HTTP API: taken, wrong, on the network, and the pages that may call it."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from services.gateway.http import server
from services.gateway.http.api import Api
from services.gateway.http.app import app_of
from services.gateway.http.errors import HttpError
from services.gateway.http.guard import Rules
from services.gateway.http.identity import Callers
from services.gateway.served_models import Models
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from shared.service.door import Door


def test_only_the_default_port_may_be_taken(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = settings.model_copy(update={"http_listen": f"127.0.0.1:{other.getsockname()[1]}"})
        with pytest.raises(ConfigurationError, match=r"http_listen: cannot listen on .*''"):
            server.listener_of(taken)
        assert not logs
        monkeypatch.setattr(server, "HTTP_LISTEN", taken.http_listen)
        assert server.listener_of(taken) is None
        assert logs[0]["event"] == "no HTTP API"
    for wrong in ("8000", "127.0.0.1:99999", "nowhere.invalid:1"):
        with pytest.raises(ConfigurationError, match="http_listen"):
            server.listener_of(settings.model_copy(update={"http_listen": wrong}))


def test_a_name_that_others_control_is_no_host_of_ours(settings: Settings) -> None:
    def passes(host: str, **changes: Any) -> bool:
        rules = Rules.of(settings.model_copy(update={"http_listen": "127.0.0.1:8000", **changes}))
        try:
            rules.check(Headers({"host": host}), "http")
        except HttpError:
            return False
        return True

    assert all(
        map(passes, ("localhost", "LOCALHOST:8000", "app.localhost", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3"))
    )
    assert not any(map(passes, ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "gateway:8000")))
    assert passes("Gateway:8000", http_hosts=("gateway",))
    assert not passes("other:8000", http_hosts=("gateway",), allow_anonymous="never")
    assert passes("images.example.com", allow_anonymous="never")
    assert passes("evil.example", http_hosts=("*",))


def test_the_servers_own_pages_may_call_behind_a_proxy_that_ends_tls(settings: Settings) -> None:
    """Every sign-in to the console was refused there: the page's origin is https, and the request that arrives is
    not."""
    changes = {"http_listen": "127.0.0.1:8000", "http_public_url": "https://Images.example.com:443/", "tls_proxy": True}
    rules = Rules.of(settings.model_copy(update={**changes, "allow_anonymous": "never"}))
    host = ("host", "images.example.com")
    rules.check(Headers(dict([host, ("origin", "https://images.example.com")])), "http")
    for origin in ("https://evil.example", "https://images.example.com.evil.example", "", "null"):
        with pytest.raises(HttpError, match="Origin"):
            rules.check(Headers(dict([host, ("origin", origin)])), "http")


async def test_pages_of_listed_origins_may_call(settings: Settings) -> None:
    page, other = "https://app.example.com", "https://evil.example"
    changed = settings.model_copy(update={"http_listen": "127.0.0.1:8000", "http_origins": (page,)})
    settings.data_dir.mkdir()
    catalog = await open_catalog(changed.catalog_url)
    nothing: Any = None
    door = Door(catalog, changed, needed=False)
    callers, models = Callers(door, changed), Models({}, "")
    api = Api(changed, nothing, models, nothing, callers, nothing, nothing, nothing, nothing, 0.0)
    transport = httpx.ASGITransport(app_of(api))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        preflight = await client.options("/v1/models", headers={"origin": page, **asked})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, page)
        answer = await client.get("/v1/models", headers={"origin": page})
        assert (answer.json()["data"], answer.headers["access-control-allow-origin"]) == ([], page)
        refused = await client.get("/v1/models", headers={"origin": other})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in refused.headers
    await catalog.close()
