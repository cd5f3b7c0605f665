"""The parts of a prompt that a search compares on their own: its object and its background (FlexCache §4.2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from shared.domain.json_values import Stored


@dataclass(frozen=True, slots=True)
class Parts(Stored):
    """Object and background of a prompt, each a piece of its text; "" where the prompt names none."""

    object: str = ""
    background: str = ""

    @property
    def both(self) -> bool:
        """Return whether both are named; a search by parts needs both (FlexCache §3.2)."""
        return bool(self.object and self.background)
