"""The folder of a run: which settings may change, and what depends on them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.trainer.finetuning.data.index import FILE
from services.trainer.finetuning.saving.lock import locked
from services.trainer.finetuning.saving.run_folder import RunFolder
from shared.domain.errors import ConfigurationError
from tests.unit.trainer.finetuning.conftest import settings_of


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A folder with an index and kept outputs, before the first checkpoint."""
    found = RunFolder(tmp_path / "out")
    found.begin(settings_of(tmp_path, tmp_path, found.out, optimizer={"ema_decay": 0}))
    (found.folder / FILE).touch()
    found.encoded.mkdir()
    return found


def test_settings_may_change_until_there_is_a_checkpoint(folder: RunFolder, tmp_path: Path) -> None:
    larger = settings_of(tmp_path, tmp_path, folder.out, optimizer={"ema_decay": 0}, batch=8)
    folder.begin(larger)
    assert folder.encoded.exists()
    (folder.checkpoints / "00000002").mkdir(parents=True)
    folder.begin(larger)
    with pytest.raises(ConfigurationError, match=r"out: \S+ holds a run with another batch \(8\)"):
        folder.begin(larger.model_copy(update={"batch": 4}))


def test_kept_outputs_belong_to_an_index_and_a_model(folder: RunFolder, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, tmp_path, folder.out, optimizer={"ema_decay": 0})
    folder.begin(settings.model_copy(update={"model": "another"}))
    assert not (folder.folder / FILE).exists()
    assert not folder.encoded.exists()
    folder.encoded.mkdir()
    folder.begin(settings)  # its rows may have other numbers in a new index
    assert not folder.encoded.exists()


def test_an_average_cannot_begin_after_a_checkpoint_without_one(folder: RunFolder, tmp_path: Path) -> None:
    (folder.checkpoints / "00000002").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"another optimizer\.ema_decay \(0\.0\)"):
        folder.begin(settings_of(tmp_path, tmp_path, folder.out))


def quiet(line: str) -> None:
    """Print nothing."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two files of a data set."""
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_text(name)
    return {name: tmp_path / name for name in ("0.png", "1.png")}


def test_changed_data_is_read_again_before_the_first_checkpoint(folder: RunFolder, files: dict[str, Path]) -> None:
    folder.check_files("data.path", files, quiet)
    assert not (folder.folder / FILE).exists()  # of a start without a record
    (folder.folder / FILE).touch()
    folder.encoded.mkdir()
    folder.check_files("data.path", files, quiet)
    assert (folder.folder / FILE).exists()
    files["1.png"].write_text("2.png")  # as many bytes, another time
    folder.check_files("data.path", files, quiet)
    assert not (folder.folder / FILE).exists()
    assert not folder.encoded.exists()


def test_a_run_does_not_go_on_with_changed_data(folder: RunFolder, files: dict[str, Path]) -> None:
    folder.check_files("data.path", files, quiet)
    (folder.folder / FILE).touch()
    (folder.checkpoints / "00000002").mkdir(parents=True)
    os.utime(files["0.png"], (1, 1))  # a copy of the data has other times
    folder.check_files("data.path", files, quiet)
    third = files["0.png"].with_name("2.png")
    third.write_text("2.png")
    for changed, said in (
        ({"0.png": files["0.png"]}, "1.png is missing"),
        (files | {"2.png": third}, "2.png is new"),
        ({"0.png": third, "1.png": files["1.png"]}, "0.png has other contents"),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"data\.path: changed since the run in \S+ began: {said}; restore"
        ):
            folder.check_files("data.path", changed, quiet)
    folder.check_files("data.path", files, quiet)  # restored
    assert (folder.folder / FILE).exists()


def test_a_run_that_began_without_a_record_goes_on(folder: RunFolder, files: dict[str, Path]) -> None:
    """An earlier version began it."""
    (folder.checkpoints / "00000002").mkdir(parents=True)
    folder.check_files("data.path", files, quiet)
    assert (folder.folder / FILE).exists()


def test_a_folder_has_one_run_at_a_time(folder: RunFolder) -> None:
    with (
        locked(folder.folder, quiet),
        pytest.raises(ConfigurationError, match=rf"out: another run trains in \S+ \(process {os.getpid()} on \S+\)"),
        locked(folder.folder, quiet),
    ):
        pass
    with locked(folder.folder, quiet):
        pass


def test_the_lock_of_another_machine_is_awaited(folder: RunFolder) -> None:
    said = list[str]()
    with ExitStack() as other:
        other.enter_context(locked(folder.folder, quiet))
        (folder.folder / "lock").write_text("7 on elsewhere")
        with (
            pytest.raises(ConfigurationError, match=r"out: another run trains in \S+ \(process 7 on elsewhere\)"),
            locked(folder.folder, quiet, lease_s=0),
        ):
            pass

        def fail(line: str) -> None:
            """Release the lock, as a network file system does for a machine that failed."""
            said.append(line)
            other.close()

        with locked(folder.folder, fail):
            assert said == [f"waiting up to 120 s for the lock of {folder.folder}, which process 7 on elsewhere holds"]
