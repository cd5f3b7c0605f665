"""mkdocs hook: replace links to files outside docs/ by the files' paths, because the site holds docs/ only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Write ``[text](../bench/README.md)`` as ``text (`bench/README.md`)``; mkdocs itself warns of missing files."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def as_path(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link[2]))
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return link[0]
        path = f"`{target.relative_to(ROOT).as_posix()}`"
        return path if link[1].strip("`") == path.strip("`") else f"{link[1]} ({path})"

    return LINK.sub(as_path, markdown)
