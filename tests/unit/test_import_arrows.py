"""The contracts of .importlinter name every service: one that is added and forgotten there would be bound by none."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("contract", "named"),
    [("services-are-strangers", "modules"), ("replay-drives-and-is-not-driven", "source_modules")],
)
def test_every_service_is_bound(contract: str, named: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    bound = set(contracts[f"importlinter:contract:{contract}"][named].split())
    assert {f"services.{path.parent.name}" for path in (ROOT / "services").glob("*/service.py")} <= bound
