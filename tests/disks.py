"""Small disks for tests: of memory, to be filled, or a file with ext4, to be broken as a failing disk is."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.servers import REQUIRED

BALLAST = "ballast"


class Disk:
    """A mounted file system that is small enough to be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def free(self) -> int:
        """Bytes that are free."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take all that is free but so many bytes; with 0, to the last page."""
        with open(self.folder / BALLAST, "ab", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                try:
                    while self.free - size >= leave > 0 or not leave:
                        file.write(b"x" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        """Give back what `fill` took."""
        (self.folder / BALLAST).unlink()

    def grow(self, size: str) -> None:
        """Make the disk so large, as `16m`."""
        _run("mount", "-o", f"remount,size={size}", str(self.folder))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Disk]:
    """Mount so much memory, as `16m`, at a new folder; skip the test where that is not allowed."""
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs"):
        yield Disk(folder)


class BreakableDisk:
    """An ext4 in a file, which becomes read-only when it meets an error, as the disks of most machines do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        _run("truncate", "--size", "64M", str(self._image))
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))

    @contextlib.contextmanager
    def mounted(self, how: str = "rw") -> Iterator[None]:
        """how: `rw` or `ro`."""
        with _mounted(self.folder, "-o", f"loop,errors=remount-ro,{how}", str(self._image)):
            yield

    def fail(self) -> None:
        """Report an error to the kernel, which makes the file system read-only under all that have it open."""
        device = _run("findmnt", "--noheadings", "--output", "SOURCE", str(self.folder)).strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")

    def mend(self) -> None:
        """Check the unmounted file system, as a machine does at its start."""
        _run("e2fsck", "-fy", str(self._image), fine=(0, 1))


@contextlib.contextmanager
def _mounted(folder: Path, *how: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", *how, folder], capture_output=True, check=False).returncode:
        (pytest.fail if "disks" in REQUIRED else pytest.skip)("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _run(*command: str, fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in fine, f"{command}: {done.stderr}"
    return done.stdout
