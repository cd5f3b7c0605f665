"""A key has a rate: its flood is refused at the door, with the time to come back, and others are answered."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from services.gateway.console import sessions
from services.gateway.console.sessions import COOKIE, CSRF
from shared.domain.errors import OverloadedError
from shared.domain.identity import Rate, Role
from shared.runtime import rpc
from tests.attacks.conftest import Guarded
from tests.attacks.test_http import BODY, IMAGES, http

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_flood_on_one_key_leaves_the_others_answered(guarded: Guarded) -> None:
    await guarded.issue("flooder", "rival", [Role.USER], rate=Rate(0.2, 5))
    taken, refused = [], []

    async def flood(list_jobs: grpc.aio.UnaryUnaryMultiCallable) -> None:
        metadata = (("authorization", f"Bearer {guarded.keys['flooder']}"),)
        for _ in range(50):
            try:
                await list_jobs(b"", metadata=metadata, timeout=5.0)
                taken.append(time.monotonic())
            except grpc.aio.AioRpcError as error:
                refused.append(rpc.from_rpc_error(error))

    begun = time.monotonic()
    async with grpc.aio.insecure_channel(guarded.address) as channel, guarded.client("eve") as eve:
        listing = channel.unary_unary("/afterimage.gateway.v1.GatewayService/ListJobs")
        flooding = [asyncio.create_task(flood(listing)) for _ in range(4)]
        for seed in range(3):  # of the same tenant
            assert (await eve.generate("a fox", seed=seed, steps=2)).png
        await asyncio.gather(*flooding)
    lasted = time.monotonic() - begun
    assert 1 <= len(taken) <= 5 + 0.2 * lasted  # the fixture's own call is one of the five
    assert len(refused) == 200 - len(taken)
    assert all(isinstance(one, OverloadedError) and "rate of 12/min, burst 5" in str(one) for one in refused)
    assert all(0 < (one.retry_after_s or 0.0) <= 5.0 for one in refused)


async def test_repeats_count_and_http_says_when_to_come_back(guarded: Guarded) -> None:
    await guarded.issue("repeater", "rival", [Role.USER], rate=Rate(0.1, 4))
    async with http(guarded, guarded.keys["repeater"]) as client:
        answers = [await client.post(IMAGES, json=BODY | {"seed": 7}) for _ in range(5)]
    assert answers[0].status_code == 200
    last = answers[-1]
    assert (last.status_code, last.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(last.headers["retry-after"]) <= 10
    async with guarded.client("repeater") as client_of_grpc:  # one bucket for both ports
        with pytest.raises(OverloadedError, match="rate of"):
            await client_of_grpc.generate("a fox")


async def test_a_session_of_the_console_has_the_rate_of_its_key(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await guarded.issue("clicker", "rival", [Role.USER], rate=Rate(0.1, 4))
    async with http(guarded) as browser:
        login = await browser.post("/console/api/login", json={"key": guarded.keys["clicker"]})
        cookies = {"cookie": f"{COOKIE}={login.cookies[COOKIE]}"}
        token = (await browser.get("/console/api/session", headers=cookies)).json()["csrf"]
        ends = [
            (await browser.post("/console/api/logout", headers=cookies | {CSRF: token})).status_code for _ in range(4)
        ]
        assert ends[-1] == 429
        assert (await browser.get("/console/api/session", headers=cookies)).json()["signed_in"], "reads do not count"
        monkeypatch.setattr(sessions, "LISTS_RATE", Rate(0.1, 3))
        lists = [(await browser.get("/console/api/jobs", headers=cookies)).status_code for _ in range(4)]
        assert lists == [200, 200, 200, 429]


async def test_guessed_keys_take_no_tokens(guarded: Guarded) -> None:
    await guarded.issue("victim", "rival", [Role.USER], rate=Rate(0.1, 3))
    guessed = guarded.keys["victim"][:-2] + "zz"
    async with http(guarded, guessed) as guesser:
        assert {(await guesser.get("/v1/models")).status_code for _ in range(5)} == {401}
    async with guarded.client("victim") as victim:
        assert await victim.list_jobs() == ([], "")


async def test_a_client_waits_for_its_tokens(guarded: Guarded) -> None:
    await guarded.issue("patient", "rival", [Role.USER], rate=Rate(10.0, 1))
    async with guarded.client("patient") as client:
        client._retry_s = 5.0
        for _ in range(3):
            await client.list_jobs()
