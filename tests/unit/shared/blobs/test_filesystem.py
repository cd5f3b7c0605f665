"""Folders come and go while blobs are placed; none of it reaches the caller."""

from __future__ import annotations

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
