"""The page of commands: every command of `afterimage` with its arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from scripts.reference.markdown import code, prose, table
from services.cli.app import EXIT_CODES, app

HEADER = ("option", "default", "meaning")
DEFAULTS = (
    "An option without a default leaves the choice to the [settings](settings.md), or to the server that is asked."
)


def page() -> str:
    """Return the page as Markdown."""
    codes: dict[int, list[str]] = {}
    for kind, number in EXIT_CODES:
        codes.setdefault(number, []).append(f"`{kind.__name__}`")
    rows = "\n".join(f"| {number} | {', '.join(kinds)} |" for number, kinds in sorted(codes.items()))
    return f"""\
{chr(10).join(_sections("afterimage", typer.main.get_command(app), 1))}
## Exit codes

The codes follow `sysexits(3)`; 0 is success. [Errors](errors.md) explains each error.

| exit code | errors |
|---|---|
| 1 | every other error |
{rows}
| 130 | Ctrl-C |
| 141 | the reader of the output has gone |
"""


def _sections(name: str, command: Any, level: int) -> Iterator[str]:
    title = "Commands" if level == 1 else name
    yield f"{'#' * level} {title}\n\n{_help(command.help or '')}" + (f"\n{DEFAULTS}\n" if level == 1 else "")
    rows = [_row(name, command, param) for param in command.params if not param.hidden]
    if rows:
        yield table(HEADER, rows)
    for part, below in getattr(command, "commands", {}).items():
        yield from _sections(f"{name} {part}", below, level + 1)


def _row(name: str, command: Any, param: Any) -> tuple[str, str, str]:
    shown = param.get_help_record(typer.Context(command, info_name=name))[0].strip()
    if not param.opts[0].startswith("-"):
        shown = f"{param.name.upper()}"
    default = "required" if param.required else "" if param.default in (None, "", False) else code(param.default)
    if param.default is True and param.secondary_opts:
        default = code(param.opts[0])
    return code(shown), default, prose(param.help or "")


def _help(text: str) -> str:
    """Return a command's help: its examples as a block of commands, everything else as prose."""
    paragraphs: list[str] = []
    examples: list[str] = []
    for one in text.split("\n\n"):
        inline = re.fullmatch(r"Examples?: (.*\bafterimage .*)", one)
        if one.startswith(" "):
            examples.append(one.strip())
        elif inline:
            examples += inline[1].split(" · ")
        elif one not in ("[bold]Examples[/bold]", "[bold]Example[/bold]"):
            paragraphs.append(one)
    block = "```sh\n" + "\n".join(examples) + "\n```\n" if examples else ""
    return "\n\n".join([prose(one) for one in paragraphs]) + "\n" + ("\n" + block if block else "")
