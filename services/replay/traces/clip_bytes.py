"""Bytes of the states of clips by codec, as measured: `python -m bench.replays.clip_bytes` writes `clip_bytes.json`.

A clip's states depend on each other with the codec `keyframes`, and their bytes differ from clip to clip. So each
request takes the bytes of one measured clip, in turn. They are stated relative to the fp16 state, for clips of any
number of frames and any size.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shared.domain.errors import ConfigurationError

FILE = Path(__file__).with_name("clip_bytes.json")
STEPS = (5, 10, 15, 20, 25)
"""K of 50 of the measured states (FlexCache §3.2)."""
MEASURE = "`python -m bench.replays.clip_bytes`"
"""Command that measures them."""


@dataclass(frozen=True)
class ClipBytes:
    """The measured clips."""

    codecs: dict[str, list[dict[int, dict[int, tuple[float, int]]]]]
    """Codec → clips → first stored K → K → bytes relative to fp16, and the K of the state that it needs, or 0.

    A hit stores only the states after its start, and they are coded together (§4.2.4)."""
    masks: list[float]
    """Bytes of each clip's masks relative to one fp16 state (§4.3)."""

    def states(self, codec: str, request: int, ks: Collection[int]) -> dict[int, tuple[float, int]]:
        """Return the bytes of the states at `ks`, which are stored together, and the state that each needs; see
        `codecs`.

        Raises ConfigurationError for a codec or a K that was not measured, and for a codec that was measured with
        further states.
        """
        if codec == "fp16":
            return dict.fromkeys(ks, (1.0, 0))
        if (clips := self.codecs.get(codec)) is None:
            known = ", ".join(("fp16", *self.codecs))
            raise ConfigurationError(f"state_codec: was not measured on clips; there are {known} (got {codec!r})")
        if unmeasured := set(ks) - set(STEPS):
            rule = f"must be among K = {_listed(STEPS)} of 50, which {FILE.name} has; {MEASURE} measures them"
            raise ConfigurationError(f"capture_steps: {rule} (got {_listed(sorted(unmeasured))})")
        found = clips[request % len(clips)][min(ks)]
        if len(ks) < len(found) and any(needs for clip in clips for _, needs in clip[min(ks)].values()):
            rule = f"{codec} was measured with all states at K = {_listed(found)} of 50 together"
            raise ConfigurationError(f"capture_steps: {rule} (got {_listed(ks)})")
        return {k: found[k] for k in ks}

    def mask(self, request: int) -> float:
        return self.masks[request % len(self.masks)]


def _listed(ks: Collection[int]) -> str:
    return ", ".join(map(str, ks))


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
