"""The page of settings: one table per section of `shared.runtime.settings`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from scripts.reference.markdown import code, prose, table
from services.cli.up import up
from shared.runtime.settings import Settings
from shared.runtime.settings.section import Section
from shared.runtime.settings_names import PREFIX, RETIRED

HEADER = ("variable", "`afterimage up`", "default", "unit and range", "description")
UNITS = {"_s": "s", "_bytes": "bytes"}
SIZES = ((2**30, "bytes", "GiB"), (2**20, "bytes", "MiB"), (86400, "s", "d"), (3600, "s", "h"))
SIGNS = {annotated_types.Gt: ">", annotated_types.Ge: "≥", annotated_types.Lt: "<", annotated_types.Le: "≤"}
INTRO = f"""\
# Settings

Each setting is an environment variable, and some are options of [`afterimage up`](commands.md#afterimage-up), too.
An option wins over its variable. Every process reads its settings once, at its start. A start refuses a value outside
the range, and warns of an `{PREFIX}…` variable that no setting has.

Lists are written with commas. Truth values are `1` and `0`. An empty default is an empty text.
"""


def page() -> str:
    """Return the page as Markdown."""
    sections = [kind for kind in Settings.__mro__ if Section in kind.__bases__ and kind is not Settings]
    parts = [INTRO]
    for kind in sections:
        name, _, about = (sys.modules[kind.__module__].__doc__ or kind.__name__).partition(": ")
        parts.append(f"## {name}\n\n{prose(about[:1].upper() + about[1:])}\n\n{table(HEADER, _rows(kind))}")
    retired = "\n".join(f"| `{PREFIX}{name}` | {value} |" for name, value in RETIRED.items())
    parts.append(
        "## Former settings\n\nA start ignores these variables and warns of them. "
        "Their values are constants, or those of another setting.\n\n"
        f"| variable | value |\n|---|---|\n{retired}\n"
    )
    return "\n".join(parts)


def _rows(section: type[Section]) -> Iterator[tuple[str, ...]]:
    for name in section.__annotations__:
        field = Settings.model_fields[name]
        option = f"--{name.replace('_', '-')}" if name in up.__annotations__ else ""
        unit = next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")
        described = prose(field.description or "")
        yield code(PREFIX + name.upper()), code(option), _default(field.default, unit), _range(field, unit), described


def _default(value: Any, unit: str) -> str:
    """Return the default as the environment variable would hold it; large sizes and times also in larger units."""
    if isinstance(value, bool | tuple):
        return code(",".join(str(part) for part in value) if isinstance(value, tuple) else int(value))
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, float):
        value = f"{value:g}" if value < 1e5 else f"{value:.0f}"
    sizes = [(size, name) for size, of, name in SIZES if of == unit]
    larger = next((f" ({float(value) / size:g} {name})" for size, name in sizes if float(value) >= size), "")
    return code(value) + larger


def _range(field: FieldInfo, unit: str) -> str:
    """Return the unit and the limits, or the values that are allowed."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(code(value) for value in get_args(field.annotation))
    if get_origin(field.annotation) is tuple:
        return "texts" if str in get_args(field.annotation) else "numbers"
    limits = {type(rule): getattr(rule, type(rule).__name__.lower()) for rule in field.metadata if type(rule) in SIGNS}
    spans = [f"{SIGNS[kind]} {value}" for kind, value in limits.items()]
    kinds: dict[Any, str] = {bool: "`0`, `1`", int: unit or "whole number", float: unit or "number"}
    return ", ".join(part for part in (kinds.get(field.annotation, ""), *spans) if part)
