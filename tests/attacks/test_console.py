"""The scenarios of identity in the console: no session, a forged one, another's jobs, a key that ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from services.gateway import own_jobs
from services.gateway.console.pages import FOLDER
from services.gateway.console.sessions import COOKIE
from shared.domain.identity import Role
from shared.runtime import audit
from tests.attacks.conftest import Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = {"prompt": "a secret fox", "num_inference_steps": 5}


@contextlib.asynccontextmanager
async def signed_in(guarded: Guarded, *subjects: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Yield a client of each subject, with a session and its token against forged requests."""
    base = f"{guarded.house.process.http_address}/console/api/"
    async with contextlib.AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(httpx.AsyncClient(base_url=base, timeout=20.0)) for _ in subjects]
        for client, subject in zip(clients, subjects, strict=True):
            await sign_in(client, guarded.keys[subject])
        yield clients


async def sign_in(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post("login", json={"key": key})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/console/api/" in cookie
    assert key.partition(".")[2].lower() not in cookie
    client.headers["x-csrf-token"] = (await client.get("session")).json()["csrf"]


async def test_a_stranger_gets_the_pages_and_no_data(guarded: Guarded) -> None:
    async with httpx.AsyncClient(base_url=guarded.house.process.http_address, timeout=20.0) as client:
        for path in ("/", "/console", "/console/", "/console/main.js"):
            page = await client.get(path, follow_redirects=True)
            assert page.status_code == 200, path
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        same = await client.get("/console/main.js", headers={"if-none-match": page.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        assert (await client.get("/console/console.py")).status_code == 404
        session = (await client.get("/console/api/session")).json()
        assert (session["signed_in"], "csrf" in session) == (False, False)
        key = {"authorization": f"Bearer {guarded.keys['alice']}"}
        for path in ("jobs", "jobs/x", "jobs/x/image", "cache", "events"):
            for headers in ({}, key, {"cookie": f"{COOKIE}=a.99999999999.{'x' * 43}"}, {"cookie": f"{COOKIE}=;=;"}):
                assert (await client.get(f"/console/api/{path}", headers=headers)).status_code == 401, path
        assert (await client.post("/console/api/login", json={"key": "aik_none." + "x" * 43})).status_code == 401
        foreign = {"origin": "http://evil.example"}
        login = await client.post("/console/api/login", json={"key": guarded.keys["alice"]}, headers=foreign)
        assert login.status_code == 403
    files = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert "main.js" in files
    assert sum(map(len, files.values())) <= 150 * 1024
    for name, text in files.items():
        assert "innerHTML" not in text, name
        assert "http://" not in text.replace("http://www.w3.org/", ""), name
        assert "https://" not in text, name


async def test_a_session_sees_what_its_key_sees(guarded: Guarded) -> None:
    folder = guarded.house.process.context.settings.data_dir
    logs = [folder / name for name in audit.FILES]
    before = {log: len(log.read_text().splitlines()) if log.exists() else 0 for log in logs}
    own_jobs._noted.clear()
    async with signed_in(guarded, "alice", "bob", "chief", "ops") as (alice, bob, chief, ops):
        accepted = await alice.post("jobs", json=BODY)
        assert accepted.status_code == 202
        job_id = accepted.json()["jobs"][0]["id"]
        async with asyncio.timeout(20.0):
            while (await alice.get(f"jobs/{job_id}")).json()["state"] != "succeeded":
                await asyncio.sleep(0.02)
        assert (await alice.get(f"jobs/{job_id}/image?size=thumb")).headers["content-type"] == "image/webp"
        text = {"prompt": BODY["prompt"]}
        async with asyncio.timeout(20.0):
            while job_id not in (await alice.post("similar", json=text)).text:  # until it is in the cache
                await asyncio.sleep(0.05)
        assert job_id in (await chief.post("similar", json=text)).text
        assert "secret fox" not in (await bob.post("similar", json=text)).text
        assert (await ops.post("similar", json=text)).status_code == 403
        for client, status in ((chief, 200), (bob, 404), (ops, 403)):
            for path in (f"jobs/{job_id}", f"jobs/{job_id}/image"):
                assert (await client.get(path)).status_code == status
        assert (await bob.delete(f"jobs/{job_id}")).status_code == 404
        assert job_id not in (await bob.get("jobs")).text
        assert (await alice.get("cache")).status_code == 403
        assert (await ops.get("cache")).json()["starts"]["jobs"] >= 1
        assert "a secret fox" not in (await ops.get("cache")).text
        assert job_id in (await chief.get("jobs")).text
        async with chief.stream("GET", "events"):
            pass
    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()[before[log] :]]
    noted = {(one["actor"], one["action"]) for one in map(json.loads, lines)}
    assert {("acme/chief", action) for action in ("read job", "list jobs", "search jobs", "watch jobs")} <= noted
    assert "inspect" not in {action for _, action in noted}  # the page of the cache shows counts alone


async def test_events_of_others_do_not_arrive(guarded: Guarded) -> None:
    async with signed_in(guarded, "alice", "bob") as (alice, bob), bob.stream("GET", "events") as events:
        lines, seen = events.aiter_lines(), list[str]()

        async def made(client: httpx.AsyncClient) -> str:
            """Send a request, and read bob's events until one of his jobs has succeeded."""
            job_id = str((await client.post("jobs", json=BODY)).json()["jobs"][0]["id"])
            async with asyncio.timeout(20.0):
                while (await client.get(f"jobs/{job_id}")).json()["state"] != "succeeded":
                    await asyncio.sleep(0.02)
                while client is bob and not (seen and job_id in seen[-1] and "succeeded" in seen[-1]):
                    seen.append(await anext(lines))
            return job_id

        await made(bob)
        hers = await made(alice)
        await made(bob)  # whose events come after hers
        assert "succeeded" in "".join(seen)
        assert hers not in "".join(seen)


async def test_a_change_needs_the_token_of_its_session(guarded: Guarded) -> None:
    async with signed_in(guarded, "alice", "bob") as (alice, bob):
        for token in ("", bob.headers["x-csrf-token"]):
            for path, body in (("jobs", BODY), ("similar", {"prompt": "a secret fox"})):
                assert (await alice.post(path, json=body, headers={"x-csrf-token": token})).status_code == 403
        # the cookie opens the console's paths alone
        cookie = {"cookie": f"{COOKIE}={alice.cookies[COOKIE]}"}
        assert (await alice.get(f"{guarded.house.process.http_address}/v1/models", headers=cookie)).status_code == 401
        assert (await alice.post("logout")).status_code == 200
        assert (await alice.get("jobs")).status_code == 401


async def test_a_session_ends_with_its_key(guarded: Guarded) -> None:
    await guarded.issue("passer", "acme", [Role.USER])
    async with signed_in(guarded, "passer") as (client,), client.stream("GET", "events") as events:
        lines = events.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        await guarded.house.backends.catalog.keys.revoke(guarded.keys["passer"].removeprefix("aik_").partition(".")[0])
        async with asyncio.timeout(5.0):
            told = [line async for line in lines]
        assert "event: error" in told
        assert "key" in told[told.index("event: error") + 1]
        assert (await client.get("jobs")).status_code == 401


async def test_a_session_ends_at_its_own_time(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.console.sessions.LIFETIME_S", 1)
    async with signed_in(guarded, "alice") as (client,), asyncio.timeout(5.0):
        async with client.stream("GET", "events") as events:
            assert "the session has ended" in "".join([line async for line in events.aiter_lines()])
        assert (await client.get("jobs")).status_code == 401
