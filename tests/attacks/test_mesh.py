"""Services of a cluster call each other by mutual TLS: each shows its name, and checks who calls and who answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from protos import cache_maintainer_pb2 as pb
from protos import embedder_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.embedder_pb2_grpc import EmbedderServiceStub
from scripts.stack.stack import serving
from services.cache_maintainer.service import CacheMaintainerService
from services.cli.app import app
from services.embedder.service import EmbedderService
from shared.domain.errors import PermissionDeniedError, UnavailableError
from shared.runtime import rpc, tls
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import Context, door, health, running
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    return made(tmp_path / "mesh")


def made(folder: Path) -> Path:
    """Make the certificates, or renew them."""
    subprocess.run([ROOT / "compose" / "mesh_certificates.sh", folder], check=True)
    return folder


def member(settings: Settings, mesh: Path, tiny: Path, **changed: Any) -> Settings:
    given = {"mesh_certificates": str(mesh), "encoder": str(tiny / "clip"), "torch_threads": 1}
    return settings.model_copy(update={**given, **changed})


def as_service(name: str, settings: Settings, address: str, called: str = "embedder") -> Context:
    """Return what a service of this name calls another with."""
    changed = settings.model_copy(update={f"{called}_address": address})
    nothing: Any = None
    return Context(changed, nothing, mesh=tls.mesh_of(changed, name))


async def ask(context: Context) -> int:
    stub: Any = context.stub(EmbedderServiceStub, "embedder")
    reply = await rpc.call(stub.EmbedText, embedder_pb2.EmbedTextRequest(texts=["a fox"]), timeout_s=5.0)
    return len(reply.embeddings)


async def asked_by(name: str, settings: Settings, address: str) -> int:
    context = as_service(name, settings, address)
    try:
        return await ask(context)
    finally:
        await context.close()


async def test_only_a_caller_of_the_service_is_answered(
    settings: Settings, mesh: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal left no trace."""
    said = list[tuple[str, dict[str, Any]]]()
    logger = SimpleNamespace(warning=lambda event, **facts: said.append((event, facts)))
    monkeypatch.setattr(door, "log", lambda _: logger)
    before = METRICS.door_refused.labels(PermissionDeniedError.code)._value.get()
    own = member(settings, mesh, tiny)
    async with running([EmbedderService()], own) as process:
        assert await asked_by("gateway", own, process.address) == 1
        assert await asked_by("retriever", own, process.address) == 1
        with pytest.raises(PermissionDeniedError, match="certificate of segmenter may not call EmbedText"):
            await asked_by("segmenter", own, process.address)
        assert METRICS.door_refused.labels(PermissionDeniedError.code)._value.get() == before + 1
        ((event, facts),) = said
        assert (event, facts["call"], facts["refused"]) == ("call refused", "EmbedText", 1)
        plain, stranger = member(settings, Path(), tiny, mesh_certificates=""), made(tmp_path / "stranger")
        for wrong in (plain, member(settings, stranger, tiny)):
            with pytest.raises(UnavailableError):
                await asked_by("gateway", wrong, process.address)


async def test_a_caller_has_only_the_methods_that_its_code_calls(settings: Settings, mesh: Path, tiny: Path) -> None:
    """A gateway that was broken into could purge the cache, and read every prompt in it."""
    own = member(settings, mesh, tiny)
    async with running([CacheMaintainerService()], own) as process:

        async def asked(name: str, *methods: str) -> None:
            context = as_service(name, own, process.address, "cache_maintainer")
            stub: Any = context.stub(CacheMaintainerServiceStub, "cache_maintainer")
            try:
                for method in methods:
                    await rpc.call(getattr(stub, method), getattr(pb, f"{method}Request")(), timeout_s=30.0)
            finally:
                await context.close()

        await asked("gateway", "Stats", "Quality")
        for method in ("Inspect", "Purge", "Collect"):
            with pytest.raises(PermissionDeniedError, match=f"certificate of gateway may not call {method}"):
                await asked("gateway", method)
        await asked("operator", "Stats", "Quality", "Inspect")


async def test_who_answers_in_anothers_place_is_found_out(settings: Settings, mesh: Path, tiny: Path) -> None:
    """A retriever that was broken into must not read prompts as the embedder."""
    shutil.rmtree(mesh / "embedder")
    shutil.copytree(mesh / "retriever", mesh / "embedder")
    own = member(settings, mesh, tiny)
    async with running([EmbedderService()], own) as process:
        with pytest.raises(UnavailableError):
            await asked_by("gateway", own, process.address)


async def test_renewed_certificates_need_no_restart(
    settings: Settings, mesh: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    own = member(settings, mesh, tiny)
    async with running([EmbedderService()], own) as process:
        context = as_service("gateway", own, process.address)
        assert await ask(context) == 1
        former = await asyncio.to_thread(mesh.rename, mesh.parent / "former")
        await asyncio.to_thread(made, mesh)  # of another authority, so that the old ones fit nowhere
        assert await ask(context) == 1
        with pytest.raises(UnavailableError):
            await asked_by("gateway", member(settings, former, tiny), process.address)
        # each channel watches the health of its server, and a server has few watches
        monkeypatch.setattr(health, "MOST_WATCHES", 4)
        for _ in range(5):
            os.utime(mesh / "gateway" / "tls.crt")
            assert await ask(context) == 1
            await asyncio.sleep(0.1)
        await context.close()


async def test_a_service_that_calls_and_is_called_renews_both_sides(
    settings: Settings, mesh: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One side noted the new files, and the other kept the old ones until they expired."""
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    own = member(settings, mesh, tiny)
    async with running([EmbedderService()], own) as embedder:
        both = own.model_copy(update={"data_dir": tmp_path / "other", "embedder_address": embedder.address})
        async with running([CacheMaintainerService()], both) as process:
            for _ in range(2):
                assert await ask(process.context) == 1
                assert await asyncio.to_thread(serving, process.address, "cache_maintainer", str(mesh))
                await asyncio.to_thread(shutil.rmtree, mesh)
                assert await ask(process.context) == 1  # while the new ones are not there, the old ones hold
                await asyncio.to_thread(made, mesh)  # of another authority


async def test_a_renewal_leaves_the_files_to_the_user_of_the_service(mesh: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, as a renewal of another user's files does")
    os.chown(mesh / "embedder", 10001, -1)
    await asyncio.to_thread(made, mesh)
    assert {path.stat().st_uid for path in (mesh / "embedder").iterdir()} == {10001}


async def test_commands_show_the_operators_certificate(
    settings: Settings, mesh: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running([CacheMaintainerService()], member(settings, mesh, tiny)) as process:
        monkeypatch.setenv("AFTERIMAGE_CACHE_MAINTAINER_ADDRESS", process.address)
        refused = await asyncio.to_thread(CliRunner().invoke, app, ["cache", "stats"])
        assert refused.exit_code != 0
        monkeypatch.setenv("AFTERIMAGE_MESH_CERTIFICATES", str(mesh))
        answered = await asyncio.to_thread(CliRunner().invoke, app, ["cache", "stats"])
        assert answered.exit_code == 0, answered.output
