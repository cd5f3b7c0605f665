"""The base install is the client and the commands that ask a server: they run with the packages that it names alone."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from PIL import Image

from shared.runtime.settings import Settings
from tests import tiny
from tests.flows.house import house

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ALONE = """
import json, sys
absent = frozenset(json.loads(sys.argv.pop(1)))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
COMMAND = ALONE + "from services.cli.app import main; main()"
CLIENT = (
    ALONE
    + """
from shared.client import Client
with Client(sys.argv[1]) as client:
    sys.stdout.write(client.generate("a blue fox", steps=2).job.plan.reason)
"""
)


def absent() -> list[str]:
    """Importable packages that are installed here and are none of the base install's."""
    wanted, base = list(PROJECT["dependencies"]), set()
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name not in base:
            base.add(name)
            wanted += metadata.requires(name) or ()
    packages = metadata.packages_distributions()
    ours = {"services", "shared", "protos"}
    return sorted(
        package
        for package, distributions in packages.items()
        if package not in ours and base.isdisjoint(one.lower().replace("_", "-") for one in distributions)
    )


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


async def test_client_and_remote_commands_need_the_base_install_alone(tmp_path: Path) -> None:
    models = tiny.build(tmp_path / "models")
    settings = Settings(
        data_dir=tmp_path / "data", listen="127.0.0.1:0", metrics_listen="", torch_threads=1,
        large=str(models / "large"), encoder=str(models / "clip"),
    )  # fmt: skip
    async with house(settings) as afterimage:
        target = afterimage.process.address
        drawn = await run(tmp_path, COMMAND, "generate", "a red fox", "--steps", "2", "--target", target, "-o", "a.png")
        assert drawn[0] == 0, drawn
        with Image.open(tmp_path / "a.png") as image:
            assert image.size == (64, 64)
        drawn = await run(tmp_path, COMMAND, "generate", "a red fox", "--steps", "2", "--target", target, "-o", "a")
        assert "(PNG, 64x64, seed " in drawn[1], drawn
        for command in (["jobs", "list"], ["health"], ["cache", "stats"], ["cache", "inspect"], ["monitor", "--once"]):
            code, out, error = await run(tmp_path, COMMAND, *command, "--target", target)
            assert code == 0, (command, out, error)
        code, out, error = await run(tmp_path, CLIENT, target)
        assert code == 0, error
        assert out


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
