"""A stranger, a colleague and another tenant try to read, to cancel and to take what is not theirs."""

from __future__ import annotations

import asyncio
import json
import stat
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.doctor.servers import check_service
from shared.client import AsyncClient
from shared.client.credentials import API_KEY
from shared.domain.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from shared.domain.identity import ANONYMOUS, ApiKey, Role, issued, principal_of
from shared.runtime import rpc
from shared.runtime.audit import READS
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import door
from tests.attacks.conftest import SHIPPED_S, Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stranger_gets_nothing_but_health(guarded: Guarded) -> None:
    """Bytes that are no message are refused for their missing key: nothing was parsed."""
    wrong = guarded.keys["alice"][:-1] + ("A" if guarded.keys["alice"][-1] != "A" else "B")
    for key in ("", wrong, "aik_none." + "x" * 43, "sesame"):
        async with AsyncClient(guarded.address, retry_s=0.0, api_key=key) as client:
            with pytest.raises(UnauthenticatedError):
                await client.list_jobs()
            with pytest.raises(UnauthenticatedError):
                async for _ in client.generate_stream("a fox", steps=10):
                    pass
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        for method in ("/afterimage.gateway.v1.GatewayService/Generate", "/no.such.Service/Method"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(method)(b"\xff\xff", timeout=5.0)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        listing = reflection_pb2.ServerReflectionRequest(list_services="*")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            async for _ in reflection.ServerReflectionInfo(iter([listing])):
                pass
        assert hidden.value.code() is grpc.StatusCode.UNAUTHENTICATED
        shown = [
            answer
            async for answer in reflection.ServerReflectionInfo(
                iter([listing]), metadata=(("authorization", f"Bearer {guarded.keys['eve']}"),)
            )
        ]
        assert len(shown) == 1
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_two_keys_or_two_tenants_are_refused(guarded: Guarded) -> None:
    """The last of two headers won."""
    alice = ("authorization", f"Bearer {guarded.keys['alice']}")
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        stub: Any = GatewayServiceStub(channel)

        async def listed(*metadata: tuple[str, str]) -> Any:
            return await rpc.call(stub.ListJobs, pb.ListJobsRequest(), timeout_s=5.0, metadata=metadata)

        with pytest.raises(UnauthenticatedError):
            await listed(alice, ("authorization", f"Bearer {guarded.keys['eve']}"))
        with pytest.raises(InvalidRequestError, match="tenant"):
            await listed(alice, ("tenant", "acme"), ("tenant", "rival"))
        with pytest.raises(PermissionDeniedError, match="tenant"):
            await listed(alice, ("tenant", "rival"))
        await listed(alice, ("tenant", "acme"))


async def test_a_job_is_its_subjects_and_its_tenants_admin_may_see_it(guarded: Guarded) -> None:
    """A colleague read private prompts and images, by list, by id, by cancelling and by a guessed idempotency key."""
    async with (
        guarded.client("alice") as alice,
        guarded.client("bob") as bob,
        guarded.client("chief") as chief,
        guarded.client("eve") as eve,
    ):
        secret = await alice.generate("alice's secret", steps=10, seed=1, user="bob", idempotency_key="guess")
        assert secret.job.request.user == "bob"  # her label, as she gave it
        for other in (bob, eve):
            assert secret.job.id not in {view.job.id for view in (await other.list_jobs())[0]}
            for wanted in (other.get_job, other.get_picture, other.cancel):
                with pytest.raises(NotFoundError, match="no such job"):
                    await wanted(secret.job.id)
            own = await other.generate("alice's secret", steps=10, seed=1, user="bob", idempotency_key="guess")
            assert own.job.id != secret.job.id
        with pytest.raises(ConflictError):  # the key's own owner still conflicts
            await alice.generate("another", steps=10, seed=1, idempotency_key="guess")
        assert secret.job.id in {view.job.id for view in (await alice.list_jobs())[0]}
        assert secret.job.id in {view.job.id for view in (await chief.list_jobs())[0]}
        assert (await chief.get_picture(secret.job.id)).png == secret.png
        own = await chief.generate("the chief's own", steps=10)
        await chief.get_job(own.job.id)
    said = (guarded.house.process.context.settings.data_dir / READS).read_text()
    read = [line for line in map(json.loads, said.splitlines()) if line["actor"] == "acme/chief"]
    noted = {(line["action"], line["target"]) for line in read}
    assert noted >= {("list jobs", "tenant acme"), ("read job", secret.job.id)}
    assert own.job.id not in said
    assert "secret" not in said


async def test_a_private_image_is_its_subjects_whatever_user_another_names(guarded: Guarded) -> None:
    """`user` was an identity: naming another's gave their private entries."""
    asked: dict[str, Any] = {"steps": 10, "seed": 7, "user": "home", "scope": "private"}
    async with guarded.client("alice") as alice, guarded.client("bob") as bob:
        first = await alice.generate("a private fox", **asked)
        await guarded.house.settled(first)
        again = await alice.generate("a private fox", **asked)
        theirs = await bob.generate("a private fox", **asked)
    assert again.plan.source.value == "exact"
    assert theirs.plan.source.value != "exact"
    assert first.job.id not in {one.entry_id for one in theirs.plan.candidates}


async def test_roles_open_their_methods_alone(guarded: Guarded) -> None:
    """Anybody on this machine was told the private socket, which takes Purge and Drain."""
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        stub: Any = GatewayServiceStub(channel)

        async def located(subject: str) -> Any:
            metadata = (("authorization", f"Bearer {guarded.keys[subject]}"),)
            return await rpc.call(stub.Locate, pb.LocateRequest(), timeout_s=5.0, metadata=metadata)

        for subject in ("alice", "chief"):
            with pytest.raises(PermissionDeniedError, match="operator"):
                await located(subject)
        assert (await located("ops")).internal_address.startswith("unix:")
        purge = channel.unary_unary("/afterimage.cache_maintainer.v1.CacheMaintainerService/Purge")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await purge(b"", metadata=(("authorization", f"Bearer {guarded.keys['alice']}"),), timeout=5.0)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with guarded.client("ops") as ops:
        with pytest.raises(PermissionDeniedError, match="user"):
            await ops.list_jobs()


async def test_a_users_priority_overtakes_no_more_than_its_role_allows(guarded: Guarded) -> None:
    for subject, most in (("bob", 4), ("chief", 100)):
        async with guarded.client(subject) as client:
            job = (await client.generate("a fox in a hurry", steps=10, cache="off", priority=100)).job
        row = await guarded.house.backends.catalog.jobs.get(job.id)
        assert row.request.priority == most
        assert any(one.startswith("priority: 100 needs a key") for one in row.warnings) == (most < 100)


async def test_a_stolen_key_ends_when_revoked_rotated_or_expired(guarded: Guarded) -> None:
    keys = guarded.house.backends.catalog.keys
    for name in ("revoked", "rotated"):
        await guarded.issue(name, "acme", [Role.USER])
    await guarded.issue("expired", "acme", [Role.USER], lifetime_s=0.5)
    new, text = issued(ANONYMOUS)
    rotated = await keys.rotate(_id(guarded.keys["rotated"]), new.id, new.digest, 0.5)
    assert (rotated.principal.tenant, rotated.principal.subject) == ("acme", "rotated")
    await keys.revoke(_id(guarded.keys["revoked"]))
    for subject in ("revoked", "rotated", "expired"):
        async with asyncio.timeout(5.0), guarded.client(subject) as client:
            while await _served(client):
                await asyncio.sleep(0.02)
    guarded.keys["rotated"] = text
    await guarded.known("rotated")


async def test_a_revoked_key_ends_within_five_seconds(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    await guarded.issue("late", "acme", [Role.USER])
    monkeypatch.setattr(door, "EVERY_S", SHIPPED_S)
    await asyncio.sleep(0.2)  # a shorter wait is over, and the whole one has begun
    async with guarded.client("late") as client:
        await guarded.house.backends.catalog.keys.revoke(_id(guarded.keys["late"]))
        assert await _served(client)
        async with asyncio.timeout(5.0):
            while await _served(client):
                await asyncio.sleep(0.05)


async def test_the_first_start_leaves_one_key_in_a_file_of_its_owner(guarded: Guarded) -> None:
    """No secret is in the log or in the catalog."""
    path = guarded.house.process.context.settings.data_dir / "bootstrap-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    guarded.keys["bootstrap"] = path.read_text().strip()
    async with guarded.client("bootstrap") as client:
        await client.list_jobs()
    secret = guarded.keys["bootstrap"].partition(".")[2]
    assert str(path) in guarded.logged
    assert secret not in guarded.logged
    assert secret not in repr(await guarded.house.backends.catalog.keys.all())


def _id(text: str) -> str:
    return text.removeprefix("aik_").partition(".")[0]


async def _served(client: AsyncClient) -> bool:
    try:
        await client.list_jobs()
    except UnauthenticatedError:
        return False
    return True


async def test_the_doctor_reads_the_version_with_an_operators_key(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which version runs is no business of callers without a key."""
    settings = Settings(listen=guarded.address)

    async def said() -> str:
        [found] = await asyncio.to_thread(lambda: list(check_service(settings)))
        return found.fact

    monkeypatch.delenv(API_KEY, raising=False)
    assert "it tells its version to an operator's API key alone" in await said()
    monkeypatch.setenv(API_KEY, guarded.keys["ops"])
    assert "with the same version" in await said()


async def test_the_doctor_names_a_key_that_is_refused(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It called the service ok."""
    monkeypatch.setenv(API_KEY, issued(principal_of("acme", "alice", [Role.USER]))[1])
    settings = Settings(listen=guarded.address)
    [found] = await asyncio.to_thread(lambda: list(check_service(settings)))
    assert (found.verdict, API_KEY in found.fact) == ("wrong", True)


async def test_refused_calls_are_counted_and_a_flood_of_them_is_logged_once(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guessing keys left no trace."""
    said = list[dict[str, Any]]()
    logger = SimpleNamespace(warning=lambda event, **facts: said.append({"event": event} | facts))
    monkeypatch.setattr(door, "log", lambda _: logger)
    counted = METRICS.door_refused.labels(UnauthenticatedError.code)
    before = counted._value.get()
    guess = issued(principal_of("acme", "alice", [Role.USER]))[1]
    async with AsyncClient(guarded.address, retry_s=0.0, api_key=guess) as stranger:
        for _ in range(20):
            with pytest.raises(UnauthenticatedError):
                await stranger.plan("a fox")
    assert counted._value.get() == before + 20
    assert len(said) <= 2  # at most one line in ten seconds
    assert guess not in repr(said)


async def test_an_expired_key_is_refused_by_its_own_time() -> None:
    """While the catalog is away, the last keys hold: a key worked on after its end."""
    key = ApiKey("a", "d", principal_of("acme", "alice", [Role.USER]), expires_at=100.0)
    assert (key.expired(99.9), key.expired(100.0)) == (False, True)
    assert not ApiKey("a", "d", principal_of("acme", "alice", [Role.USER])).expired(1e12)
