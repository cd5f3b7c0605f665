"""The documentation site builds, and links between the repository's pages lead to files and headings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from pymdownx.slugs import slugify

from scripts.outside_links import on_page_markdown

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "bench", "load", "shared", "services", "protos", "scripts")
PAGES = [*sorted(ROOT.glob("*.md")), *(path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.md")))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose_of(path: Path) -> str:
    """Return the page without its blocks and pieces of code."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a page: its headings as GitHub and the site name them, and explicit ids."""
    text, slug = prose_of(path), slugify(case="lower")
    names: list[str] = []
    for title in re.findall(r"^#+ +(.+?)(?: *\{#.*\})? *$", text, re.M):
        name = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", ""), "-")
        names.append(name + (f"_{seen}" if (seen := names.count(name)) else ""))
    return {*names, *re.findall(r"(?:id=\"|\{#)([\w-]+)", text)}


def broken_links(path: Path) -> Iterator[str]:
    """Yield the relative links of a page that lead to no file, or to no heading of a page."""
    for link in LINK.findall(prose_of(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = Path(os.path.normpath(path.parent / name)) if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            yield link


def test_the_check_finds_missing_files_and_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One – two\n\n## `code` α\n\n```\n# none\n```\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#one--two) [c](other.md#code-α) [d](#here) [e](https://x.y/#z)\n"
        "[f](no.md) [g](other.md#none) [h](#there) `[i](code.md)`\n\n```\n[j](block.md)\n```\n"
    )
    assert list(broken_links(page)) == ["no.md", "other.md#none", "#there"]


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 20
    broken = {path.relative_to(ROOT).as_posix(): links for path in PAGES if (links := list(broken_links(path)))}
    assert broken == {}


def test_pages_and_sections_that_code_cites_are_there() -> None:
    cited = re.compile(r"\bdocs/([\w/-]+\.md)(?:, ([A-Z][a-z]+(?: [a-z]+)*))?")
    tops = (*FOLDERS[1:], "tests", "compose", "Makefile", ".ci")
    listed = subprocess.run(["git", "ls-files", *tops], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found, missing = 0, set()
    for name in listed.split():
        if (
            not name.endswith((".py", ".proto", ".yaml", ".sh", "Makefile", "run"))
            or name == "tests/unit/test_docs_site.py"
        ):
            continue
        text = re.sub(r"\s*\n[\s#/]*", " ", (ROOT / name).read_text(encoding="utf-8"))
        for page, section in cited.findall(text):
            found += 1
            path = ROOT / "docs" / page
            titles = re.findall(r"^#+ +(.+?) *$", prose_of(path), re.M) if path.exists() else []
            if not titles or (section and not section.startswith(tuple(titles))):
                missing.add((name, page, section))
    assert found > 40
    assert missing == set()


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_on_the_site_a_link_out_of_the_pages_is_a_path() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="adr/0001.md"))
    stay = "[b](../index.md) [c](no.md) ![d](../../LICENSE)"
    text = f"[figures](../../bench/README.md#a) [`Makefile`](../../Makefile) {stay}"
    assert on_page_markdown(text, page=page) == f"figures (`bench/README.md`) `Makefile` {stay}"
