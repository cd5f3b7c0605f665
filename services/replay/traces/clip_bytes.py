"""Bytes of the states of clips by codec, as measured: `python -m bench.replays.clip_bytes` writes `clip_bytes.json`.

A clip's states depend on each other with the codec `keyframes`, and their bytes differ from clip to clip. So each
request takes the bytes of one measured clip, in turn. They are stated relative to the fp16 state, for clips of any
number of frames and any size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shared.domain.errors import ConfigurationError

FILE = Path(__file__).with_name("clip_bytes.json")
STEPS = (5, 10, 15, 20, 25)
"""K of 50 of the measured states (FlexCache §3.2)."""


@dataclass(frozen=True)
class ClipBytes:
    """The measured clips."""

    codecs: dict[str, list[dict[int, dict[int, tuple[float, int]]]]]
    """Codec → clips → first stored K → K → bytes relative to fp16, and the K of the state that it needs, or 0.

    A hit stores only the states after its start, and they are coded together (§4.2.4)."""
    masks: list[float]
    """Bytes of each clip's masks relative to one fp16 state (§4.3)."""

    def states(self, codec: str, request: int, first: int) -> dict[int, tuple[float, int]]:
        """Return the bytes of the states from K = `first` on, and the state that each needs; see `codecs`.

        Raises ConfigurationError for a codec or a K that was not measured.
        """
        if codec == "fp16":
            return {k: (1.0, 0) for k in STEPS if k >= first}
        if (clips := self.codecs.get(codec)) is None:
            known = ", ".join(("fp16", *self.codecs))
            raise ConfigurationError(f"state_codec: was not measured on clips; there are {known} (got {codec!r})")
        if first not in STEPS:
            raise ConfigurationError(f"capture_steps: clips were measured at K = {STEPS} of 50 (got {first})")
        return clips[request % len(clips)][first]

    def mask(self, request: int) -> float:
        return self.masks[request % len(self.masks)]


@cache
def read_clip_bytes(path: Path = FILE) -> ClipBytes:
    """Read the measurement that ships."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    codecs = {
        codec: [
            {int(first): {int(k): (share, needs) for k, (share, needs) in ks.items()} for first, ks in clip.items()}
            for clip in clips
        ]
        for codec, clips in found["codecs"].items()
    }
    return ClipBytes(codecs, found["masks"])
