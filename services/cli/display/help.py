"""Help texts: options described by their setting, flowing paragraphs, unchanged examples, flags without a type."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from shared.domain.errors import InvalidRequestError
from shared.runtime.settings import Settings

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""click's, or that of the copy of click inside newer versions of typer."""


def setting(name: str, *flags: str) -> Any:
    """Return an option that is described by the setting of this name."""
    return typer.Option(*flags, help=Settings.model_fields[name].description)


def flowing(text: str) -> str:
    """Return each paragraph as one line, which the terminal wraps; keep indented lines (examples) as written."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.split("\n")) for one in paragraphs)


def _without_types(params: Iterable[Any]) -> None:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""


class _Flowing:
    """Common base of commands and groups."""

    params: list[Any]

    def __init__(self, *arguments: Any, help: str | None = None, **named: Any) -> None:
        super().__init__(*arguments, help=flowing(help) if help else help, **named)  # type: ignore[call-arg]  # theirs
        _without_types(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]  # of the command or the group
        _without_types([option])
        return option


class Command(_Flowing, TyperCommand):
    """A command with flowing help."""


class Group(_Flowing, TyperGroup):
    """A group of commands with flowing help, whose usage errors are one line like all other errors."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        with _in_one_line():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        with _in_one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise InvalidRequestError for a usage error, which typer shows in a box of several lines."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # prints the help
            raise
        usage: Any = error
        if (param := getattr(usage, "param", None)) is not None and usage.message:
            field, rule = param.opts[0].lstrip("-"), usage.message.rstrip(".")
            raise InvalidRequestError(field, rule, _refused(usage.__cause__)) from error
        shown = f"; see `{usage.ctx.command_path} --help`" if usage.ctx else ""
        raise InvalidRequestError("usage", usage.format_message().rstrip(".") + shown) from error


def _refused(cause: BaseException | None) -> object:
    """Return the value that broke a rule; None where the message of the usage error already names it."""
    return cause.errors()[0]["input"] if isinstance(cause, ValidationError) else None


def teach(app: typer.Typer) -> typer.Typer:
    """Give all commands and groups of the app flowing help; return the app."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            teach(group.typer_instance)
    return app
