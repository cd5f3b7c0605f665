"""Folders come and go while blobs are placed; none of it reaches the caller."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shared.blobs.filesystem import FilesystemBlobs
from shared.domain.errors import BlobUnavailableError


async def test_a_folder_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pathlib finds the folder there, then not a folder, and says that it exists."""
    blobs, mkdir = await FilesystemBlobs.open(str(tmp_path / "blobs")), Path.mkdir
    raced: list[Path] = []

    def racing(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == "er" and not raced:
            raced.append(path)
            raise FileExistsError(17, "File exists", str(path))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", racing)
    await blobs.put("deep/er/1", b"x")
    assert raced
    assert await blobs.get("deep/er/1") == b"x"
    await blobs.close()


async def test_a_file_where_a_folder_is_wanted_is_an_error(tmp_path: Path) -> None:
    blobs = await FilesystemBlobs.open(str(tmp_path / "blobs"))
    await blobs.put("deep", b"a file")
    with pytest.raises(BlobUnavailableError, match="deep/er"):
        await blobs.put("deep/er", b"x")
    await blobs.close()


async def test_the_names_of_a_folder_are_not_all_held_at_once(tmp_path: Path) -> None:
    """A cache of 100,000 entries has a folder of 900,000 states."""
    blobs = await FilesystemBlobs.open(str(tmp_path / "blobs"))
    (tmp_path / "blobs" / "states").mkdir()
    names = {f"{number:04}{'x' * 190}" for number in range(3000)}
    for name in names:
        (tmp_path / "blobs" / "states" / name).touch()
    listing = blobs.list("states/")
    tracemalloc.start()
    first = await anext(listing)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 500_000  # a list of all names takes 750,000
    assert {first.key, *[blob.key async for blob in listing]} == {f"states/{name}" for name in names}
    await blobs.close()
