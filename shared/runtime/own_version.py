"""The version of Afterimage that runs here."""

from __future__ import annotations

from importlib import metadata


def own_version() -> str:
    """Return the installed version; `unknown` where the code runs without an installation, as in containers."""
    try:
        return metadata.version("afterimage")
    except metadata.PackageNotFoundError:
        return "unknown"
