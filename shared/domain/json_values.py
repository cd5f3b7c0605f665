"""Frozen values as JSON and back; what another version added to one survives the way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
_KEPT = "?"
"""JSON key under which pydantic writes the unknown fields, until `to_json` puts them in their place."""
_IS_KEPT = f'"{_KEPT}":'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Base of a value that is stored or sent as JSON, and may have been written by another version of Afterimage."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    unknown: Annotated[dict[str, Any] | None, Field(alias=_KEPT, exclude_if=lambda kept: kept is None)] = field(
        default=None, compare=False, repr=False
    )
    """Fields that this version does not know, as they were read; `dataclasses.replace` keeps them, `to_json` writes
    them again. They count neither for equality nor for the hash."""


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: object) -> bytes:
    """A frozen value as JSON; `from_json` gives an equal one back."""
    data = _adapter(type(value)).dump_json(value, by_alias=True)
    return data if _IS_KEPT not in data else json.dumps(_in_place(json.loads(data)), ensure_ascii=False).encode()


def from_json(kind: type[T], data: bytes | str) -> T:
    """The value that `to_json` wrote, also with fields that only another version knows; raises
    pydantic.ValidationError for anything else."""
    try:
        return _adapter(kind).validate_json(data)
    except ValidationError as error:
        found = [one["loc"] for one in error.errors() if one["type"] == "unexpected_keyword_argument"]
        if not found:
            raise
    return _with_unknown(kind, json.loads(data), found)


def _with_unknown(kind: type[T], tree: Any, found: Iterable[tuple[int | str, ...]]) -> T:
    """The value of a tree without what was `found` in it; each part of the value keeps its own unknown fields."""
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
        object.__setattr__(part, "unknown", fields)  # nobody else has the value yet
    return value


def _in_place(tree: Any) -> Any:
    """The tree with the unknown fields of each part beside its known ones."""
    if isinstance(tree, list):
        return [_in_place(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kept = tree.pop(_KEPT, None) or {}
    return {**{name: _in_place(part) for name, part in tree.items()}, **kept}
