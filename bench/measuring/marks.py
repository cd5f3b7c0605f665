"""Generated blocks of a page, between marks that name block and command; the text around them is written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def places(text: str, command: str) -> Sequence[str]:
    """Return the names of this command's blocks, in order."""
    return re.findall(rf"<!-- (\w+): written by {re.escape(command)} -->", text)


def placed(text: str, blocks: Mapping[str, str], command: str) -> str:
    """Return the text with each block between its marks; LookupError if the marks are missing."""
    for name, content in blocks.items():
        begin, end = f"<!-- {name}: written by {command} -->", f"<!-- end of {name} -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
        if found is None:
            raise LookupError(f"the page has no marks for {name}; add {begin} and {end}")
        text = f"{text[: found.start()]}{begin}\n{content}\n\n{end}{text[found.end() :]}"
    return text
