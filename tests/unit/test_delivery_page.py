"""Check that the code and the tests that docs/delivery.md names for each rule exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "delivery.md"


def named(cell: str) -> Iterator[tuple[str, str]]:
    """Yield (file below tests/, words of a test or nothing) for a cell: `unit/x/test_a.py: *one*; test_b.py: *two …*`.

    A file without a folder is in the folder of the file before it. Words belong to the file before them.
    """
    folder = file = ""
    for path, words in re.findall(r"([\w/]+\.py)|\*([^*]+)\*", cell):
        if path:
            folder = path.rpartition("/")[0] if "/" in path else folder
            file = f"{folder}/{path.rpartition('/')[2]}"
        yield file, words


def pattern_of(words: str) -> re.Pattern[str]:
    """Return the pattern of a test's name that is given in words, with `…` for words left out."""
    parts = (re.sub(r"\W+", "_", part.strip()) for part in words.replace("-", " ").split("…"))
    return re.compile(rf"def test_{'.*'.join(parts)}\(")


def rules() -> list[list[str]]:
    """Return the cells (rule, where, test) of the page's tables of rules."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## The rules")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0].strip() != "rule"]


def test_the_reader_knows_files_and_words() -> None:
    cell = "unit/a/test_b.py: *one*, *two …*; test_c.py; flows/test_d.py (why: *three*)"
    assert [*named(cell)] == [
        ("unit/a/test_b.py", ""),
        ("unit/a/test_b.py", "one"),
        ("unit/a/test_b.py", "two …"),
        ("unit/a/test_c.py", ""),
        ("flows/test_d.py", ""),
        ("flows/test_d.py", "three"),
    ]
    assert pattern_of("a worker … dies").search("async def test_a_worker_of_two_dies(bench")
    assert not pattern_of("a worker dies").search("def test_a_worker_dies_twice(")


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(rules()) > 40
    missing = []
    for rule, _, cell in rules():
        found = [*named(cell)]
        if not found and "`" not in cell:
            missing.append((rule, "no test"))
        for file, words in found:
            path = ROOT / "tests" / file
            if not path.is_file():
                missing.append((file, ""))
            elif words and not pattern_of(words).search(path.read_text(encoding="utf-8")):
                missing.append((file, words))
    assert missing == []


def test_every_file_that_the_page_names_for_a_rule_is_there() -> None:
    files = [path for _, where, _ in rules() for path in re.findall(r"[\w/.]+\.(?:py|yaml)", where)]
    assert len(files) > 50
    beside = {path.name for path in (ROOT / "services").rglob("*.py")}
    missing = [
        path
        for path in files
        if not any((ROOT / top / path).is_file() for top in ("", "services", "shared"))
        and not ("/" not in path and path in beside)
    ]
    assert missing == []
