"""Every command that README, docs and bench pages name exists, and takes the options named with it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from services.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "bench/**/*.md", "load/**/*.md")
START = re.compile(r"(?:\w+=\S+ +)*(?:\S+/)?(?=(?:afterimage|make|python3? -m) +[a-z])")
FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
PLACEHOLDER = re.compile(r"[<{]|NAME|MODULE")


def named(text: str) -> Iterator[str]:
    """Each line of fenced blocks, and each code span of the prose."""
    for block in FENCED.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each command of ours, up to where the shell or a comment begins something else."""
    for line in named(text):
        for part in re.split(r"; |&& |\| ", line.partition(" #")[0]):
            if found := START.match(part.strip()):
                with contextlib.suppress(ValueError):  # prose, with a quote that closes elsewhere
                    yield tuple(word for word in shlex.split(part.strip()[found.end() :]) if word != "…")


def fault(words: Sequence[str]) -> str:
    """What is wrong with a command; empty when it exists and takes these options."""
    match words:
        case ["make", *targets]:
            known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return ", ".join(f"no target {one!r}" for one in targets[:1] if one not in known)
        case ["python" | "python3", "-m", module, *rest]:
            return _module_fault(module, rest)
        case ["afterimage", *rest]:
            return _command_fault(rest)
    return ""


def _module_fault(module: str, rest: list[str]) -> str:
    if PLACEHOLDER.search(module) or module in ("pytest", "venv", "pip"):
        return ""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return f"no module {module!r}"
    source = Path(spec.origin)
    texts = [one.read_text() for one in (source.parent.glob("*.py") if source.stem == "__init__" else [source])]
    options = [one.partition("=")[0] for one in rest if one.startswith("--") and len(one) > 2 and one != "--help"]
    written = " ".join(texts)
    return ", ".join(
        f"no option {one}" for one in options if one not in written and one[2:].replace("-", "_") not in written
    )


@cache
def _afterimage() -> Any:
    """The tree of commands; making it takes a tenth of a second."""
    return typer.main.get_command(app)


def _command_fault(rest: list[str]) -> str:
    command = _afterimage()
    while rest and (commands := getattr(command, "commands", None)) is not None and not rest[0].startswith("-"):
        if rest[0] not in commands:
            return f"no command {rest[0]!r}"
        command, rest = commands[rest[0]], rest[1:]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    options = (one.partition("=")[0] for one in rest if re.match(r"--?[a-z]", one))
    return ", ".join(f"no option {one}" for one in options if one not in known)


FOUND = sorted(
    {
        (str(page.relative_to(ROOT)), words)
        for one in PAGES
        for page in ROOT.glob(one)
        for words in commands(page.read_text())
    }
)


def test_pages_name_commands() -> None:
    """The search itself finds them."""
    assert {("make", "demo"), ("make", "judge"), ("afterimage", "cache", "stats")} <= {words for _, words in FOUND}
    assert len(FOUND) > 100


@pytest.mark.parametrize(("page", "words"), FOUND, ids=[f"{page}: {' '.join(words)}" for page, words in FOUND])
def test_a_named_command_exists(page: str, words: tuple[str, ...]) -> None:
    assert fault(words) == "", f"{page}: {' '.join(words)}"


@pytest.mark.parametrize(
    "line",
    [
        "make coffee",
        "afterimage brew",
        "afterimage up --hot",
        "python -m bench.coffee",
        "python -m bench.overhead --hot",
    ],
)
def test_what_does_not_exist_is_found(line: str) -> None:
    assert fault(line.split())
