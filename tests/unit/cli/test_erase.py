"""`afterimage erase` on a data directory that nothing serves."""

from __future__ import annotations

import asyncio

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from shared.client.credentials import API_KEY
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import Request
from shared.runtime.settings import Settings
from shared.service.backends import open_backends
from tests.unit.cached import finished_job, request, unit

afterimage = CliRunner()


async def _job(settings: Settings, asked: Request) -> str:
    backends = await open_backends(settings)
    try:
        return (await finished_job(backends, asked, unit(1))).id
    finally:
        await backends.close()


def test_a_job_and_then_a_tenant_of_a_directory_that_nothing_serves(settings: Settings) -> None:
    job_id = asyncio.run(_job(settings, request("a red axolotl")))
    asyncio.run(_job(settings, request("a fox", tenant="acme")))
    here = ["--data-dir", str(settings.data_dir)]
    refused = afterimage.invoke(app, ["erase", "--job", job_id, *here], input="n\n")
    assert refused.exit_code == 1
    done = afterimage.invoke(app, ["erase", "--job", job_id, "--yes", *here])
    assert done.exit_code == 0
    assert all(said in done.stdout for said in ("jobs", "pictures/", "500 bytes"))
    assert "nothing was left" in afterimage.invoke(app, ["erase", "--job", job_id, "--yes", *here]).stdout
    assert "jobs" in afterimage.invoke(app, ["erase", "--tenant", "acme", "--yes", *here]).stdout


def test_with_a_key_the_named_directory_must_be_served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, f"aik_x.{'a' * 43}")
    here = ["erase", "--tenant", "acme", "--yes", "--data-dir", str(settings.data_dir)]
    assert isinstance(afterimage.invoke(app, here).exception, ConfigurationError)
    asked = afterimage.invoke(app, ["erase", "--user", "ann", "--target", "127.0.0.1:1"], input="n\n")
    assert "user ann of the key's tenant" in asked.output


@pytest.mark.parametrize("given", [[], ["--job", "x", "--tenant", "acme"], ["--job", "x", "--user", "ann"]])
def test_what_is_erased_must_be_said_in_one_way(given: list[str], settings: Settings) -> None:
    done = afterimage.invoke(app, ["erase", *given, "--yes", "--data-dir", str(settings.data_dir)])
    assert isinstance(done.exception, InvalidRequestError)
