"""Check Python and the installed packages against the versions that pyproject.toml asks for."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from services.cli.doctor.findings import Finding, ok, warning, wrong
from shared.runtime.probes import version_of
from shared.runtime.settings import Settings

SERVERS = ("amqp", "postgresql", "minio", "weaviate")
"""Schemes of URLs whose servers need the extra `cluster`."""
EXTRAS = ("", "serve", "cluster")


@dataclass(frozen=True, slots=True)
class Asked:
    """A package that the metadata asks for, in the subset of PEP 508 that pyproject.toml uses."""

    name: str
    versions: str
    """Conditions `>=1.2,<3`; their numbers are compared without suffixes such as rc1."""
    extra: str

    @classmethod
    def parse(cls, line: str) -> Asked:
        needs, _, marker = line.partition(";")
        found = re.match(r"\s*([\w.-]+)(?:\[[^]]*\])?\s*(.*?)\s*$", needs)
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        return cls(found[1] if found else line, found[2] if found else "", extra[1] if extra else "")

    def fits(self, version: str) -> bool:
        return within(version, self.versions)


def within(version: str, versions: str) -> bool:
    """Return whether a version meets every condition, each `>=` or `<` a number."""
    numbers = version_of(version)
    for relation, limit in re.findall(r"(>=|<)\s*([\d.]+)", versions):
        length = max(len(numbers), len(bound := version_of(limit)))
        one, other = (part + (0,) * (length - len(part)) for part in (numbers, bound))
        if (one < other) is (relation == ">="):
            return False
    return True


def check_packages(settings: Settings | None) -> Iterator[Finding]:
    """Check Python, and the packages of the base install, of services, and of the servers that the settings name."""
    wanted, python = str(metadata.metadata("afterimage")["Requires-Python"] or ""), platform.python_version()
    if not within(python, wanted):
        yield wrong("python", f"Python {python}", f"Afterimage needs Python {wanted}: make a new environment with it")
    else:
        yield ok("python", f"Python {python} (needs {wanted}), afterimage {metadata.version('afterimage')}")
    asked = [Asked.parse(line) for line in metadata.requires("afterimage") or ()]
    yield from _packages([one for one in asked if one.extra in EXTRAS], _needs_cluster(settings))


def _needs_cluster(settings: Settings | None) -> bool:
    urls = (settings.bus_url, settings.catalog_url, settings.blobs_url, settings.index_url) if settings else ()
    return any(url.startswith(SERVERS) for url in urls)


def _packages(asked: list[Asked], cluster: bool) -> Iterator[Finding]:
    fitting, absent = 0, dict[str, list[str]]()
    for one in asked:
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            absent.setdefault(one.extra, []).append(one.name)
            continue
        if one.fits(version):
            fitting += 1
        else:
            yield wrong("packages", f"{one.name} {version} is installed", f"pip install '{one.name}{one.versions}'")
    for extra, names in absent.items():
        install = f"pip install 'afterimage{f'[{extra}]' if extra else ''}'"
        found = f"not installed: {', '.join(sorted(names))}"
        if not extra or (extra == "cluster" and cluster):
            yield wrong("packages", found, install)
        elif extra == "serve":
            yield warning("packages", f"{found}; commands that ask a server work without", f"to serve here: {install}")
    yield ok("packages", f"{fitting} of the needed packages have the asked versions")
