"""The embeddings of recent texts: users repeat themselves within a session (NIRVANA §3)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Remembered(Generic[V]):
    """Least recently used goes first; a capacity of 0 remembers nothing."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, text: str) -> V | None:
        if text in self._values:
            self._values.move_to_end(text)
        return self._values.get(text)

    def put(self, text: str, value: V) -> None:
        self._values[text] = value
        self._values.move_to_end(text)
        while len(self._values) > self._capacity:
            self._values.popitem(last=False)
