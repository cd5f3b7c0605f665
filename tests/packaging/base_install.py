"""A Python that has only the packages of the base install: a finder that hides all others."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

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
"""The first argument is `absent()` as JSON; the program that follows sees the others."""
COMMAND = ALONE + "from services.cli.app import main; main()"


def absent() -> list[str]:
    """Importable packages that are installed here and do not belong to the base install."""
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
