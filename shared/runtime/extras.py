"""Missing Python packages, and the extra of Afterimage that installs each."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata

OURS = ("", "services", "shared", "protos")
"""Packages of this repository; a missing module of theirs is a bug."""


@contextlib.contextmanager
def missing_packages_named(program: str) -> Iterator[None]:
    """Turn the import of a package that is not installed into one line on stderr and exit code 78."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in OURS:
            raise
        said = f"this command needs the Python package {package}, which is not installed; {_remedy(package)}"
        sys.stderr.write(f"{program}: {said}\n")
        raise SystemExit(os.EX_CONFIG) from None


def _remedy(package: str) -> str:
    """Return the pip command whose extra installs an importable package, directly or as a dependency."""
    name = {"sklearn": "scikit-learn"}.get(package, package.replace("_", "-"))
    named = re.compile(rf"{re.escape(name)}\b.* extra == ['\"](\w+)['\"]", re.IGNORECASE)
    with contextlib.suppress(metadata.PackageNotFoundError):
        extras = [found[1] for line in metadata.requires("afterimage") or () if (found := named.match(line))]
        if extras == ["dev"]:
            return f"pip install {name} brings it"
        if users := [extra for extra in extras if extra != "dev"]:
            return f"pip install 'afterimage[{users[0]}]' brings it"
    return "pip install 'afterimage[serve]' brings it"
