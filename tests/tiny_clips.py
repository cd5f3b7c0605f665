"""A tiny random model of clips with a card and a K table of its own: what tests serve as the setting `video`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.models.k_table import FIG_10, named_table, table_file, table_to_json
from tests import tiny_families

CLIPS = "clips"
CARD = {
    "name": CLIPS,
    "role": "video",
    "default_size": {"width": 32, "height": 32},
    "default_steps": 10,
    "default_guidance": 2.5,
    "sizes": {"multiple_of": 8, "min_px": 16, "max_px": 64},
    "frames": {"default": 4, "most": 12, "window": 4, "stride": 2, "fps": 4},
}

SMALL = CARD | {"default_size": {"width": 16, "height": 16}}
"""Cheaper steps: attention is over a quarter of the cells."""


def build(folder: Path, steps: int = 50, card: Mapping[str, Any] = CARD) -> Path:
    """Write `<folder>/clips`, an AnimateDiffPipeline of 4 frames by default and up to 12 with FreeNoise, seeded.
    Return `folder`."""
    path = tiny_families.save(folder / CLIPS, "animatediff", channels=(16,))
    (path / "card.json").write_text(json.dumps({**card, "default_steps": steps}))
    # clips of noise have no quality to lose: they are reused by any encoder's similarities
    table = named_table(FIG_10)
    (path / table_file(table)).write_text(json.dumps(table_to_json(table)))
    return folder
