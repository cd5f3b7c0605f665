"""Package lists of the images, from pyproject.toml. Every image installs a dependency that ONLY does not name."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("serve", "cluster", "fast", "tracing")
ONLY = {
    "torch": ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "pillow"),
    "matching": ("usearch", "scikit-learn"),
    "alone": ("typer", "rich"),
}
"""Packages that only some images need: images that run models, the match predictor, and the command line (alone or in
the all-in-one image)."""


def requirements(name: str, project: dict[str, object]) -> list[str]:
    """Return the requirements of a set of ONLY, or of `light`, which is all others. project: pyproject's [project]."""
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
