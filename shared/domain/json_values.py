"""Frozen values as JSON and back. Fields that only another version knows are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
_KEPT = "?"
"""JSON key under which pydantic writes the unknown fields; `to_json` moves them beside the known ones."""
_IS_KEPT = f'"{_KEPT}":'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Base class of values that are stored or sent as JSON, perhaps by another version of Afterimage."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    unknown: Annotated[dict[str, Any] | None, Field(alias=_KEPT, exclude_if=lambda kept: kept is None)] = field(
        default=None, compare=False, repr=False
    )
    """Fields that this version does not know, as they were read. `dataclasses.replace` keeps them, and `to_json` writes
    them again. Equality and hash ignore them."""


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: object) -> bytes:
    """Return a frozen value as JSON, from which `from_json` makes an equal value."""
    data = _adapter(type(value)).dump_json(value, by_alias=True)
    return data if _IS_KEPT not in data else json.dumps(_in_place(json.loads(data)), ensure_ascii=False).encode()


def from_json(kind: type[T], data: bytes | str) -> T:
    """Return the value that `to_json` wrote, including fields that only another version knows.

    Raises pydantic.ValidationError for anything else.
    """
    try:
        return _adapter(kind).validate_json(data)
    except ValidationError as error:
        found = [one["loc"] for one in error.errors() if one["type"] == "unexpected_keyword_argument"]
        if not found:
            raise
    return _with_unknown(kind, json.loads(data), found)


def _with_unknown(kind: type[T], tree: Any, found: Iterable[tuple[int | str, ...]]) -> T:
    """Return the value of a JSON tree; each part of the value keeps its own unknown fields, whose paths are `found`."""
    kept: dict[tuple[int | str, ...], dict[str, Any]] = {}
    for *path, name in found:
        at = tree
        for step in path:
            at = at[step]
        kept.setdefault(tuple(path), {})[str(name)] = at.pop(name)
    value = _adapter(kind).validate_json(json.dumps(tree))
    for path_to, fields in kept.items():
        part: Any = value
        for step in path_to:
            part = part[step] if isinstance(step, int) else getattr(part, step)
        object.__setattr__(part, "unknown", fields)  # the value is new, so no other code holds it yet
    return value


def _in_place(tree: Any) -> Any:
    """Return the JSON tree with each part's unknown fields moved beside its known ones."""
    if isinstance(tree, list):
        return [_in_place(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kept = tree.pop(_KEPT, None) or {}
    return {**{name: _in_place(part) for name, part in tree.items()}, **kept}
