"""`python -m scripts.reference` writes the generated pages; `--check` fails when one of them is stale."""

from __future__ import annotations

import sys

from scripts.reference import COMMAND, stale_pages, write_pages


def main(check: bool) -> str | None:
    """Write the pages, or return a line that names the stale ones and the command that writes them."""
    if not check:
        write_pages()
        return None
    stale = ", ".join(stale_pages())
    return f"docs/reference: {stale} differ from the code; run `{COMMAND}`" if stale else None


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
