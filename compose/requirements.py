"""What an image installs, by set, from pyproject.toml: a new dependency is in every image until it is named here."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("serve", "cluster", "fast")
ONLY = {
    "torch": ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "pillow"),
    "matching": ("usearch", "scikit-learn"),
    "alone": ("typer", "rich"),
}
"""What only some images need: those that run models, the match predictor, the command line (alone or with all in one
process)."""


def requirements(name: str, project: dict[str, object]) -> list[str]:
    """The requirements of a set of ONLY, or of `light`: everything else. `project` is pyproject's [project]."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    listed: list[str] = [*project["dependencies"]]  # type: ignore[misc]
    listed += [line for extra in EXTRAS for line in extras[extra]]
    elsewhere = {package for packages in ONLY.values() for package in packages}
    if name == "light":
        return [line for line in listed if package_of(line) not in elsewhere]
    return [line for line in listed if package_of(line) in ONLY[name]]


def package_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return found[0].lower()


if __name__ == "__main__":
    with (Path(__file__).resolve().parents[1] / "pyproject.toml").open("rb") as file:
        sys.stdout.write("\n".join(requirements(sys.argv[1], tomllib.load(file)["project"])) + "\n")
