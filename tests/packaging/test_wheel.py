"""The wheel holds everything that running needs; `test_tutorial.py` runs it away from the checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path


def test_the_wheel_ships_migrations_models_and_contracts(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("shared/catalog/migrations/versions/") and name.endswith(".py") for name in names)
    assert "protos/gateway.proto" in names
    assert {"shared/py.typed", "services/py.typed"} <= set(names)
    assert any(name.startswith("shared/models/bundled/") and name.endswith(".safetensors") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/", "out/"))]
    assert not [name for name in names if name.endswith((".pkl", ".bin", ".pt", ".ckpt"))]
