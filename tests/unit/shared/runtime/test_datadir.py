"""What Afterimage stores is its user's alone, whatever the umask, and also where an earlier version was laxer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.catalog import open_catalog
from shared.runtime.datadir import lock_data_dir, private_folder
from shared.runtime.settings import Settings
from shared.service.backends import open_backends
from tests.contracts.nouns import accepted


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    return [f"{path} {mode(path):o}" for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


async def used(settings: Settings) -> None:
    """Works in the data directory, with the log of SQLite still there at the look."""
    backends = await open_backends(settings)
    await accepted(backends.catalog)
    await backends.blobs.put("states/a/1/5.safetensors", b"x")
    try:
        assert {"catalog.sqlite3", "catalog.sqlite3-wal", "catalog.sqlite3-shm", "lock", "blobs"} <= {
            path.name for path in settings.data_dir.iterdir()
        }
        assert open_to_others(settings.data_dir) == []
    finally:
        await backends.close()


async def test_a_new_data_directory_is_its_users_alone(settings: Settings, tmp_path: Path, umask: int) -> None:
    deep = tmp_path / "new" / "deep"
    await used(Settings(**{**settings.model_dump(exclude={"catalog_url", "blobs_url"}), "data_dir": deep / "data"}))
    assert [mode(path) for path in (tmp_path / "new", deep, deep / "data")] == [0o700] * 3
    blob = deep / "data" / "blobs" / "states" / "a" / "1" / "5.safetensors"
    assert [mode(blob), mode(blob.parent)] == [0o600, 0o700]


async def test_what_an_earlier_version_made_is_tightened_at_the_start(settings: Settings, umask: int) -> None:
    """But for blobs that are there: they lie below a folder that nobody else enters."""
    await used(settings)
    data = settings.data_dir
    for path in (data, data / "blobs", data / "blobs" / ".tmp"):
        path.chmod(0o755)
    for name in ("catalog.sqlite3", "lock"):
        (data / name).chmod(0o644)
    await used(settings)


async def test_a_catalog_elsewhere_is_private_and_its_folder_is_left_alone(tmp_path: Path, umask: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    catalog = await open_catalog(f"sqlite+aiosqlite:///{shared}/catalog.db")
    await accepted(catalog)
    assert {mode(path) for path in shared.iterdir()} == {0o600}
    assert mode(shared) == 0o755
    await catalog.close()


@pytest.mark.parametrize(("before", "after"), [(0o1777, 0o1777), (0o755, 0o700), (0o500, 0o500)])
def test_a_sticky_folder_keeps_its_mode(tmp_path: Path, before: int, after: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(before)
    private_folder(folder)
    assert mode(folder) == after


def test_a_home_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    private_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_file_in_place_of_a_folder_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o644)
    with pytest.raises(NotADirectoryError):
        private_folder(file)
    assert mode(file) == 0o644


def test_no_umask_takes_the_way_to_a_server_of_another_user(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = private_folder(tmp_path / "stack" / "postgresql", 0o711)
    finally:
        os.umask(before)
    assert [mode(folder.parent), mode(folder)] == [0o711, 0o711]


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS])
def test_a_file_system_without_modes_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    lock = lock_data_dir(tmp_path / "data")
    lock.release()
    assert mode(tmp_path / "data") == 0o755
