"""Which Afterimage a command talks to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from services.cli.app import exit_code
from services.cli.connection import address_of, connected, connected_or_embedded, options, service_address
from services.cli.embedded import RUNNING_FILE
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.runtime import rpc
from shared.runtime.addresses import NothingListensError, SilentError
from shared.runtime.settings import Settings


@contextlib.asynccontextmanager
async def somebody() -> AsyncIterator[str]:
    """The address of something that accepts connections."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def runs_in(data_dir: Path, address: str) -> None:
    data_dir.mkdir(parents=True)
    facts = {"address": address, "internal": "unix:/nowhere", "pid": os.getpid()}
    (data_dir / RUNNING_FILE).write_text(json.dumps(facts))


async def test_a_named_data_directory_is_never_another_ones(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    async with somebody() as address:
        settings = Settings(data_dir=mine, listen=address)
        for client in (
            connected(None, settings, "default", data_dir=mine),
            connected_or_embedded(None, settings, "default", Console(quiet=True), data_dir=mine),
        ):
            with pytest.raises(ConfigurationError) as refused:
                await client.__aenter__()
            assert str(mine) in str(refused.value)
            assert address in str(refused.value)
        assert not mine.exists()


async def test_the_directory_s_own_server_a_target_and_the_default_are_used(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    async with somebody() as elsewhere, somebody() as own:
        settings = Settings(data_dir=mine, listen=elsewhere)
        async with connected(None, settings, "default"):  # nobody named a directory: what listens is meant
            assert address_of(None, settings) == elsewhere
        async with connected(elsewhere, settings, "default", data_dir=mine):
            assert address_of(elsewhere, settings) == elsewhere
        runs_in(mine, own)
        async with connected(None, settings, "default", data_dir=mine):
            assert address_of(None, settings) == own


async def test_what_takes_connections_and_is_silent_is_reported_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.connection.SILENT_S", 0.2)
    mine = tmp_path / "mine"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = Settings(data_dir=mine, listen=address)
        for asking in (
            connected(None, settings, "default").__aenter__(),
            connected(address, settings, "default").__aenter__(),
            connected_or_embedded(None, settings, "default", Console(quiet=True), data_dir=mine).__aenter__(),
            service_address("cache_maintainer", None, settings, None),
            service_address("cache_maintainer", address, settings, None),
            service_address("embedder", None, settings.model_copy(update={"embedder_address": address}), None),
        ):
            with pytest.raises(SilentError, match=f"^{address}: takes connections and has not answered within 0.2 s"):
                await asyncio.wait_for(asking, 5.0)
    assert exit_code(SilentError()) == os.EX_TEMPFAIL


async def test_a_client_that_has_waited_for_a_silent_server_ends_as_the_commands_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        error = await rpc.explained(UnavailableError("failed to connect", outside=rpc.AWAY), address)
    assert (type(error), exit_code(error)) == (SilentError, os.EX_TEMPFAIL)
    assert error.outside == rpc.AWAY  # so that the client tries again
    assert type(await rpc.explained(error, "127.0.0.1:1")) is NothingListensError


async def test_where_nothing_listens_the_error_says_how_to_start_it_there(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "mine", listen="127.0.0.1:1")
    with pytest.raises(UnavailableError, match=r"`afterimage up --data-dir .*mine`"):
        await connected(None, settings, "default", data_dir=tmp_path / "mine").__aenter__()


def test_a_proposed_command_goes_to_the_same_place() -> None:
    assert options(target=None, data_dir=None, tenant="default", state=None) == ""
    assert options(target="h:1", data_dir=Path("my data"), tenant="acme") == (
        " --target h:1 --data-dir 'my data' --tenant acme"
    )
    assert options(state="default") == " --state default"
