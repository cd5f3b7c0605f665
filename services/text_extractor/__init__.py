"""Finds the object and the background that a prompt names, and says when it is not sure (FlexCache §4.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from shared.domain.parts import Parts

Span: TypeAlias = tuple[int, int]
"""Characters [start, end) of a prompt."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """Where a prompt names its object and its background; None where the prompt names none."""

    object: Span | None = None
    background: Span | None = None
    sure: bool = False
    """False: a search should use the whole prompt only."""
    lasting: bool = True
    """False: the prompt was not answered this time, so the next request asks again."""

    def parts(self, prompt: str) -> Parts:
        """Return the pieces of the prompt."""
        return Parts(*("" if span is None else prompt[slice(*span)] for span in (self.object, self.background)))


class Extractor(Protocol):
    """One way of finding both spans; called from one thread at a time."""

    id: str
    """Name and version; answers of different ids may differ."""
    seats: int
    """Largest number of prompts in one call."""

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        """Return one extraction for each prompt, in order; never raise for any text."""
        ...
