"""What `make` promises about the user's data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_clean_keeps_the_local_stack_s_data_and_says_so(tmp_path: Path) -> None:
    for name in ("out/stack/postgres/row", "out/demo/01.png", "dist/afterimage.whl", ".afterimage/catalog.sqlite3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    command = ["make", "--no-print-directory", "-f", str(MAKEFILE), "clean"]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "kept out/stack" in first.stdout
    assert (tmp_path / "out/stack/postgres/row").exists()
    assert (tmp_path / ".afterimage/catalog.sqlite3").exists()
    assert not (tmp_path / "out/demo").exists()
    assert not (tmp_path / "dist").exists()
    shutil.rmtree(tmp_path / "out")
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert again.stdout == ""
