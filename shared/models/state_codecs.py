"""The codec of each captured state: the smallest that held every bound where the model was measured.

`afterimage profile --codecs` measures it: in the catalog, and in `state_codecs.json` beside the weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shared.models.card import ModelCard
from shared.models.k_table import Profiles
from shared.runtime.telemetry import log

AUTO = "auto"
"""Value of the setting `state_codec` that takes the codec measured for each K."""
PLAIN = "fp16"
"""Codec of states for which nothing was measured."""
SMALLEST_FIRST = (
    "residual-4x2x2", "residual-4x4", "residual-2x2x2", "residual", "residual-1bit", "residual-2bit", "int4", "int6",
    "int8", "keyframes",
)  # fmt: skip
"""Codecs that a profile tries before fp16, by the bytes of a 64×64 image's state, or of a clip's."""
OF_CLIPS = ("residual-4x2x2", "residual-2x2x2", "keyframes")
"""Codecs that make no state of an image smaller than another one does."""
FILE = "state_codecs.json"
KIND = "state_codecs"
"""Kind of this choice in the catalog."""


@dataclass(frozen=True, slots=True)
class CodecLevel:
    """The codec chosen for states after K of T steps."""

    steps: int
    k: int
    codec: str
    pairs: int = 0
    bytes: float = 0.0
    """Mean bytes of such a state."""
    why_not: Mapping[str, str] = field(default_factory=dict)
    """Bounds that each smaller codec broke."""


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """The codecs measured for one model's weights."""

    model: str
    weights_hash: str
    levels: tuple[CodecLevel, ...]

    def at(self, step: int, steps: int) -> str:
        """Return the codec of a state after `step` of `steps` steps.

        A state may start runs of any T, so each measured T counts: its first level at this share of the run or later,
        because later states have more detail to lose. The largest of these codecs serves all. fp16 if no T has such a
        level.
        """
        nearest: dict[int, CodecLevel] = {}
        for level in sorted(self.levels, key=lambda level: level.k):
            if level.k * steps >= step * level.steps:
                nearest.setdefault(level.steps, level)
        return max((level.codec for level in nearest.values()), key=_size, default=PLAIN)


def _size(codec: str) -> int:
    return SMALLEST_FIRST.index(codec) if codec in SMALLEST_FIRST else len(SMALLEST_FIRST)


_CHOICE: TypeAdapter[CodecChoice] = TypeAdapter(CodecChoice)


def choice_to_json(choice: CodecChoice) -> dict[str, Any]:
    found: dict[str, Any] = _CHOICE.dump_python(choice, mode="json")
    return found


async def load_codecs(profiles: Profiles, card: ModelCard) -> CodecChoice | None:
    """Return the codecs measured with these weights: here, else the shipped ones. None if nothing was measured."""
    found = await profiles.get(KIND, card.name, card.weights_hash)
    choice = _read(card, found) if found is not None else None
    return choice or await asyncio.to_thread(shipped_codecs, card)


def shipped_codecs(card: ModelCard) -> CodecChoice | None:
    """Return the codecs beside the weights; None without the file, and for other weights."""
    path = None if card.is_noop else Path(card.folder) / FILE
    if path is None or not path.is_file():
        return None
    choice = _read(card, path.read_bytes())
    return choice if choice is not None and choice.weights_hash == card.weights_hash else None


def codec_of(setting: str, card: ModelCard, step: int, steps: int) -> str:
    """Return the codec of a state by the setting `state_codec` and the shipped choice, without a catalog."""
    if setting != AUTO:
        return setting
    choice = shipped_codecs(card)
    return choice.at(step, steps) if choice else PLAIN


def _read(card: ModelCard, found: Mapping[str, Any] | bytes) -> CodecChoice | None:
    try:
        return _CHOICE.validate_json(found) if isinstance(found, bytes) else _CHOICE.validate_python(found)
    except ValidationError as error:
        log("state_codecs").warning("the measured codecs are ignored", model=card.name, error=str(error))
        return None
