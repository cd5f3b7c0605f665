"""The base install holds the client and the commands that ask a server; other commands name the extra they need.

`test_tutorial.py` runs the client's commands and the Python client with the base install alone, against a server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.packaging.base_install import ALONE, COMMAND, ROOT, absent


async def run(folder: Path, program: str, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, json.dumps(absent()), *arguments,
        cwd=folder, env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(process.communicate(), 60.0)
    return process.returncode or 0, out.decode(), error.decode()


def test_the_base_install_names_nothing_that_generates() -> None:
    gone = set(absent())
    assert gone >= {"torch", "diffusers", "transformers", "sklearn", "usearch", "sqlalchemy", "alembic", "aio_pika"}
    assert gone.isdisjoint({"grpc", "google", "numpy", "PIL", "pydantic", "typer", "rich"})


@pytest.mark.parametrize("name", ["gateway", "retriever", "gpu_worker", "trainer"])
async def test_a_service_alone_names_the_extra_that_it_needs(tmp_path: Path, name: str) -> None:
    program = ALONE + f"import runpy; runpy.run_module('services.{name}', run_name='__main__')"
    code, _, error = await run(tmp_path, program)
    assert (code, len(error.splitlines())) == (78, 1), error
    assert error.startswith(f"{name}: this command needs the Python package ")
    assert "pip install 'afterimage[serve]' brings it" in error


async def test_what_generates_here_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    code, _, error = await run(tmp_path, COMMAND, "up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert code == 78, error
    assert "pip install 'afterimage[serve]' brings it" in error


async def test_doctor_checks_what_it_can_without_what_generates(tmp_path: Path) -> None:
    code, out, error = await run(tmp_path, COMMAND, "doctor", "--json")
    assert (code, error) == (0, "")
    found = {one["check"]: one for one in json.loads(out)}
    assert found["data directory"]["verdict"] == "ok"
    assert "not checked: the Python package" in found["memory"]["fact"]
    assert found["service"]["verdict"] == "ok"
