"""The wheel holds everything it needs and works away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl"))


def test_the_wheel_ships_migrations_models_and_contracts(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("shared/catalog/migrations/versions/") and name.endswith(".py") for name in names)
    assert "protos/gateway.proto" in names
    assert {"shared/py.typed", "services/py.typed"} <= set(names)
    assert any(name.startswith("shared/models/bundled/") and name.endswith(".safetensors") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/", "out/"))]
    assert not [name for name in names if name.endswith((".pkl", ".bin", ".pt", ".ckpt"))]


def test_the_installed_wheel_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    command = [sys.executable, "-c", "import shared; print(shared.__file__)"]
    where = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert where.stdout.startswith(str(site)), where.stderr
    command = [
        sys.executable,
        "-m",
        "services",
        "generate",
        "a red fox in the snow",
        "--steps",
        "2",
        "--out",
        "fox.png",
    ]
    drawn = subprocess.run(
        command,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(site),
            "HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "AFTERIMAGE_LISTEN": "127.0.0.1:1",  # whatever else runs on this machine is not what is tested
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert drawn.returncode == 0, drawn.stderr
    assert "starting Afterimage in this process" in drawn.stdout
    assert (tmp_path / "fox.png").read_bytes().startswith(b"\x89PNG")
