"""The tests' files are in memory only where there is room, and a killed session's files do not stay there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import memory_files
from tests.memory_files import PREFIX, has_room, sweep

USES = "import os, tempfile; from tests.memory_files import use_memory; use_memory(); print(tempfile.mkdtemp())"


def test_without_room_or_without_the_folder_the_disk_is_used(tmp_path: Path) -> None:
    assert not has_room(tmp_path / "missing")
    assert not has_room(tmp_path, needs=2**60)


def test_what_a_killed_session_left_is_removed_and_what_a_running_one_has_stays(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left, kept = tmp_path / f"{PREFIX}{int(done.stdout)}", tmp_path / f"{PREFIX}{os.getpid()}"
    for folder in (left, kept):
        (folder / "inside").mkdir(parents=True)
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_a_folder_that_is_set_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = tempfile.gettempdir()
    memory_files.use_memory()
    assert (os.environ["TMPDIR"], tempfile.gettempdir()) == (str(tmp_path), before)


def test_the_folder_is_gone_when_its_session_ends() -> None:
    if not has_room(memory_files.MEMORY):
        pytest.skip("no room in memory")
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    done = subprocess.run(
        [sys.executable, "-c", USES], env=environment, capture_output=True, check=True, text=True, timeout=60
    )
    made = Path(done.stdout.strip())
    assert made.parent.parent == memory_files.MEMORY
    assert not made.parent.exists()
