"""`afterimage keys` with limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from shared.domain.errors import InvalidRequestError


def test_a_key_is_made_with_a_rate_and_listed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERIMAGE_DATA_DIR", str(tmp_path))
    (tmp_path / "catalog.sqlite3").touch()

    def afterimage(*words: str) -> str:
        return CliRunner().invoke(app, ["keys", *words], catch_exceptions=False, env={"COLUMNS": "200"}).stdout

    key_id = afterimage("create", "bot", "--rate", "2/s", "--burst", "20").removeprefix("aik_").partition(".")[0]
    afterimage("create", "free")
    afterimage("rotate", key_id)
    listed = afterimage("list")
    assert listed.count("2/s, burst 20") == 2, listed
    for words in (["--burst", "3"], ["--rate", "fast"], ["--rate", "2/s", "--burst", "0"]):
        with pytest.raises(InvalidRequestError, match=r"rate|burst"):
            afterimage("create", "bot", *words)
    # keys that could do nothing
    for words, said in ((["--days", "0"], "days: must be above 0"), (["--role", "publisher"], "role: publisher needs")):
        with pytest.raises(InvalidRequestError, match=said):
            afterimage("create", "bot", *words)
