"""One server and one browser for all stories. Without playwright or Chromium they are skipped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared.domain.identity import Role, issued, principal_of
from shared.runtime.settings import Settings
from tests.flows.conftest import tiny
from tests.flows.house import House, house

__all__ = ["tiny"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> AsyncIterator[House]:
    given: dict[str, Any] = {"large": "noop:?step_ms=20", "encoder": str(tiny / "clip"), "torch_threads": 1}
    given |= {"data_dir": tmp_path_factory.mktemp("browser"), "listen": "127.0.0.1:0", "metrics_listen": ""}
    async with house(Settings(**given, http_listen="127.0.0.1:0")) as it:
        yield it


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def key(served: House) -> str:
    """A key that may generate but not operate, known to the server."""
    row, text = issued(principal_of("acme", "alice", [Role.USER]))
    await served.backends.catalog.keys.add(row, None)
    async with asyncio.timeout(10.0):
        while served.process.context.door.live(row.id) is None:  # type: ignore[union-attr]
            await asyncio.sleep(0.05)
    return text


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    async with playwright.async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(served: House, browser: Any) -> AsyncIterator[Any]:
    """A page of the console. Fails the test for an error in the page, and for a refused resource."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    errors: list[str] = []
    one = await context.new_page()
    one.set_default_timeout(10_000)
    one.on("pageerror", lambda error: errors.append(str(error)))
    one.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    await one.goto(f"{served.process.http_address}/")
    await one.wait_for_selector("h1")
    yield one
    await context.close()
    assert errors == []
