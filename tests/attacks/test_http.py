"""The scenarios of identity over HTTP: no key, another's key, another's images."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import httpx
import openai
import pytest

from services.gateway.http.signed_urls import Signer, secret_of
from shared.domain.errors import BlobUnavailableError, ConfigurationError, UnauthenticatedError
from shared.domain.identity import Role
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.attacks.conftest import Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMAGES = "/v1/images/generations"
BODY: dict[str, Any] = {"prompt": "a secret fox", "num_inference_steps": 5}


def http(guarded: Guarded, key: str = "") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=guarded.house.process.http_address, headers=headers, timeout=20.0)


async def test_a_stranger_gets_nothing_but_probes_and_the_document(guarded: Guarded) -> None:
    for key in ("", "sk-elsewhere", "aik_none." + "x" * 43, guarded.keys["alice"][:-2] + "zz"):
        async with http(guarded, key) as client:
            gets = ("/v1/models", "/v1/nothing", "/v1/videos?limit=x", f"/v1/images/{'x' * 99}/content")
            for method, path in (("POST", IMAGES), ("POST", "/v1/nothing"), *(("GET", path) for path in gets)):
                answer = await client.request(method, path, content=b"{no json" if method == "POST" else b"")
                assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
                assert answer.headers["www-authenticate"] == "Bearer"
    counted = METRICS.door_refused.labels(UnauthenticatedError.code)
    async with http(guarded) as client:
        before = counted._value.get()
        for path in ("/health", "/ready", "/openapi.json", "/console/"):
            assert (await client.get(path)).status_code == 200
        assert counted._value.get() == before  # what needs no key is no refused call
        await client.get("/v1/models")
        assert counted._value.get() == before + 1
    async with http(guarded, guarded.keys["alice"]) as client:
        both = [("authorization", f"Bearer {guarded.keys['alice']}"), ("authorization", "Bearer x")]
        assert (await client.get("/v1/models", headers=both)).status_code == 401
        assert (await client.get("/v1/models", headers={"host": "images.example.com"})).status_code == 200


async def test_images_of_others_do_not_exist(guarded: Guarded) -> None:
    address = f"{guarded.house.process.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key=guarded.keys["alice"], max_retries=0) as alice:
        generated = await alice.images.generate(prompt="a fox", response_format="url", user="home", extra_body=BODY)
        assert generated.data
        url = str(generated.data[0].url)
        with pytest.raises(openai.PermissionDeniedError, match="another tenant"):
            await alice.images.generate(prompt="a fox", extra_headers={"tenant": "rival"})
    async with http(guarded, guarded.keys["bob"]) as client:
        assert (await client.get("/v1/models", headers={"tenant": "rival"})).status_code == 403
        answer = await client.post(IMAGES, json=BODY | {"scope": "public"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    path = httpx.URL(url).path
    for subject, status in (("alice", 200), ("chief", 200), ("bob", 404), ("eve", 404), ("ops", 403)):
        async with http(guarded, guarded.keys[subject]) as client:
            assert (await client.get(path)).status_code == status, subject
    async with http(guarded) as client:
        assert (await client.get(path)).status_code == 401
        assert (await client.get(url)).headers["content-type"] == "image/png"
    for subject, status in (("eve", 404), ("bob", 404), ("", 401), ("alice", 200), ("alice", 404)):
        async with http(guarded, guarded.keys.get(subject, "")) as client:
            assert (await client.delete(path.removesuffix("/content"))).status_code == status, subject
    async with http(guarded) as client:
        assert (await client.get(url)).status_code == 404
    async with http(guarded, guarded.keys["alice"]) as client:
        failing = (await client.post(IMAGES, json=BODY)).json()["data"][0]["afterimage"]["job_id"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(guarded.house.backends.blobs), "delete", AsyncMock(side_effect=BlobUnavailableError("away"))
            )
            answer = await client.delete(f"/v1/images/{failing}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")  # it was said to be deleted
        assert answer.headers["x-should-retry"] == "false"
    async with guarded.client("alice") as alice_too:
        other = (await alice_too.generate("a fox", steps=2)).job.id
    async with http(guarded, guarded.keys["ops"]) as client:
        assert (await client.delete(f"/v1/images/{other}")).status_code == 200
        assert (await client.get(f"/v1/images/{other}/content")).status_code == 403


async def test_a_revoked_key_ends_over_http_too(guarded: Guarded) -> None:
    await guarded.issue("leaver", "acme", [Role.USER])
    async with http(guarded, guarded.keys["leaver"]) as client:
        assert (await client.get("/v1/models")).status_code == 200
        await guarded.house.backends.catalog.keys.revoke(guarded.keys["leaver"].removeprefix("aik_").partition(".")[0])
        async with asyncio.timeout(5.0):
            while (await client.get("/v1/models")).status_code != 401:
                await asyncio.sleep(0.02)


async def test_the_secret_of_addresses_is_made_once_and_private(settings: Settings) -> None:
    secret = secret_of(settings)
    assert secret == secret_of(settings)
    assert (settings.data_dir / "url-secret").stat().st_mode & 0o777 == 0o600
    query = httpx.QueryParams(Signer(secret, 10.0).query("job", "png", now=100.0))
    Signer(secret, 1.0).check("job", "png", int(query["expires"]), query["signature"], now=110.0)
    for other, now, code in ((secret, 111.0, "url_expired"), (b"x" * 32, 100.0, "bad_signature")):
        with pytest.raises(Exception, match=r"signature|expired") as refused:
            Signer(other, 1.0).check("job", "png", int(query["expires"]), query["signature"], now)
        assert getattr(refused.value, "code", "") == code
    with pytest.raises(ConfigurationError, match="32 characters"):
        secret_of(Settings(**settings.model_dump() | {"http_url_secret": "short"}))
