"""Check that every path named on the pages of docs/papers exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`([\w/.]+(?:\.py|\.json|\.proto|/))`")


def test_every_path_of_the_papers_page_is_there() -> None:
    paths = PATH.findall((ROOT / "docs" / "papers" / "index.md").read_text(encoding="utf-8"))
    assert len(paths) > 60
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_path_of_a_papers_own_page_is_there() -> None:
    pages = sorted((ROOT / "docs" / "papers").glob("*.md"))
    assert len(pages) == 6
    missing = [
        (page.name, path)
        for page in pages
        for path in PATH.findall(page.read_text(encoding="utf-8"))
        if "/" in path and not (ROOT / path).exists()
    ]
    assert missing == []
