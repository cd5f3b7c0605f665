"""The folder of a run: which settings may change, and what depends on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.finetuning.data.index import FILE
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
