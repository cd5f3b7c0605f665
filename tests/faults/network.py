"""A network namespace with a link that can be cut: packets vanish both ways, and nothing is reset."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

NOBODY = "02:00:00:00:00:01"
"""A hardware address that no one has: what is sent there is dropped on arrival."""
PREFIX = "afterimage-"


@dataclass(frozen=True)
class Apart:
    """A namespace and its two links to ours: one stays, the other leads to a single server and can be cut."""

    namespace: str
    device: str
    """Of the link that can be cut; its end inside has the same name with `i` behind it."""
    outside: str
    """Our address on the link that stays …"""
    inside: str
    """… and the one inside."""
    far: str
    """Our address on the other link, where the server listens …"""
    near: str
    """… and the one inside."""

    def reach(self, address: str) -> None:
        """From inside this address of ours is reached over the link that can be cut, too."""
        _ip("-n", self.namespace, "route", "replace", f"{address}/32", "via", self.far, "dev", f"{self.device}i")

    def cut(self) -> None:
        _ip("-n", self.namespace, "neigh", "replace", self.far, "lladdr", NOBODY, "dev", f"{self.device}i",
            "nud", "permanent")  # fmt: skip
        _ip("neigh", "replace", self.near, "lladdr", NOBODY, "dev", self.device, "nud", "permanent")

    def mend(self) -> None:
        _ip("-n", self.namespace, "neigh", "del", self.far, "dev", f"{self.device}i")
        _ip("neigh", "del", self.near, "dev", self.device)


@contextmanager
def apart(number: int) -> Iterator[Apart]:
    """The test's namespace of this number (0 to 9), gone at the end; skips where that cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2 (apt-get install iproute2)")
    _sweep()
    network = f"198.18.{os.getpid() % 250}.{16 * number}".rpartition(".")
    address = [f"{network[0]}.{int(network[2]) + place}" for place in range(7)]
    stays, goes = (f"ai{os.getpid()}{kind}{number}" for kind in "sg")
    made = Apart(f"{PREFIX}{os.getpid()}-{number}", goes, address[1], address[2], address[5], address[6])
    try:
        _ip("netns", "add", made.namespace)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        _ip("-n", made.namespace, "link", "set", "lo", "up")
        for device, ours, theirs in ((stays, made.outside, made.inside), (goes, made.far, made.near)):
            _ip("link", "add", device, "type", "veth", "peer", "name", f"{device}i", "netns", made.namespace)
            _ip("addr", "add", f"{ours}/30", "dev", device)
            _ip("link", "set", device, "up")
            _ip("-n", made.namespace, "addr", "add", f"{theirs}/30", "dev", f"{device}i")
            _ip("-n", made.namespace, "link", "set", f"{device}i", "up")
        _ip("-n", made.namespace, "route", "add", "default", "via", made.outside)
        yield made
    finally:
        _remove(made.namespace, stays, goes)


def _remove(namespace: str, *devices: str) -> None:
    for device in devices:  # a namespace lives as long as a process in it, its links need not
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", device)
    with suppress(subprocess.CalledProcessError):
        _ip("netns", "del", namespace)


def _sweep() -> None:
    """What a test that was killed left behind; its links go with its namespace."""
    for path in Path("/run/netns").glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(path.name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
