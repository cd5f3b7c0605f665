"""docs/papers.md names files as they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`([\w/.]+(?:\.py|\.json|\.proto|/))`")


def test_every_path_of_the_papers_page_is_there() -> None:
    paths = PATH.findall((ROOT / "docs" / "papers.md").read_text(encoding="utf-8"))
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []
