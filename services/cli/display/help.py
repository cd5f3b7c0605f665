"""How `--help` reads: paragraphs flow at the terminal's width, examples stay as they are, flags show no type."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def flowing(text: str) -> str:
    """Each paragraph on one line, for the terminal to wrap; indented lines (examples) as they were written."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.split("\n")) for one in paragraphs)


def _without_types(params: Iterable[Any]) -> None:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""


class _Flowing:
    """What a command and a group of them have in common."""

    params: list[Any]

    def __init__(self, *arguments: Any, help: str | None = None, **named: Any) -> None:
        super().__init__(*arguments, help=flowing(help) if help else help, **named)  # type: ignore[call-arg]  # theirs
        _without_types(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]  # the command's, or the group's
        _without_types([option])
        return option


class Command(_Flowing, TyperCommand):
    """A command whose help flows."""


class Group(_Flowing, TyperGroup):
    """A group of commands whose help flows."""


def teach(app: typer.Typer) -> typer.Typer:
    """The same app, all of whose commands and groups read so."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            teach(group.typer_instance)
    return app
