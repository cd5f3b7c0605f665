"""The page of training settings: one table per table of a run's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scripts.reference.markdown import code, prose, table
from scripts.reference.settings import SIGNS
from services.trainer.finetuning.settings import LoraSettings, RunSettings

HEADER = ("key", "default", "values", "description")
INTRO = """\
# Training settings

The file of [`afterimage train run`](commands.md#afterimage-train-run), in TOML. [Fine-tune a model](../training.md) has
examples. Relative paths are relative to the file. A wrong key or value ends the command with one line that names it.
"""


def page() -> str:
    """Return the page as Markdown."""
    own = {name: field for name, field in RunSettings.model_fields.items() if _table_of(field) is None}
    parts = [INTRO, f"## Top of the file\n\n{table(HEADER, _rows(own))}"]
    for name, field in RunSettings.model_fields.items():
        if (kind := _table_of(field)) is not None:
            about = prose((kind.__doc__ or "").strip())
            needed = " Without this table all weights are trained." if kind is LoraSettings else ""
            parts.append(f"## [{name}]\n\n{about}{needed}\n\n{table(HEADER, _rows(kind.model_fields))}")
    return "\n".join(parts)


def _table_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the settings of a table; None for a single value."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _rows(fields: dict[str, FieldInfo]) -> Iterator[tuple[str, ...]]:
    for name, field in fields.items():
        yield code(name), _default(field), _values(field), prose(field.description or "")


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if field.is_required():
        return "required"
    if value is None:
        return ""
    if isinstance(value, tuple):
        shown, more = ", ".join(map(str, value[:3])), len(value) - 3
        return f"{code(shown)} and {more} more" if more > 0 else code(shown)
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f'"{value}"' if isinstance(value, str | Path) else value)


def _values(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(code(f'"{value}"') for value in get_args(field.annotation))
    limits = [
        f"{SIGNS[type(rule)]} {getattr(rule, type(rule).__name__.lower())}"
        for rule in field.metadata
        if type(rule) in SIGNS
    ]
    names: dict[Any, str] = {int: "whole number", float: "number", bool: "`true`, `false`"}
    kind = "list" if get_origin(field.annotation) is tuple else names.get(field.annotation, "text")
    return ", ".join([kind, *limits])
