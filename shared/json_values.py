"""Frozen values as JSON and back."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: object) -> bytes:
    """A frozen value as JSON; `from_json` gives an equal one back."""
    return _adapter(type(value)).dump_json(value)


def from_json(kind: type[T], data: bytes | str) -> T:
    """The value that `to_json` wrote; raises pydantic.ValidationError for anything else."""
    return _adapter(kind).validate_json(data)
