"""Which similarity → K table a replay uses, and how one that was made for another encoder is brought over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from services.replay.traces.encoders import Rows
from services.replay.traces.neighbours import AT_A_TIME
from shared.domain.errors import ModelError
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, KTable, Level, read_table
from shared.models.tables_in_force import shipped_table
from shared.runtime.settings_names import in_words

Cosines = npt.NDArray[np.float32]


def k_table(name: str, encoder: str, alpha: float) -> tuple[KTable, str]:
    """The table, and how its thresholds came about. `nirvana`: Fig. 10; else a k_table_*.json; empty: the bundled large
    model's where its own encoder compares, else NIRVANA's. ModelError for a file that is not there or holds none."""
    if name not in ("", "nirvana"):
        path = Path(name)
        if not path.is_file():
            raise ModelError(f"table {name!r}: `nirvana`, or a k_table_*.json; no such file")
        try:
            return read_table(path), f"Thresholds: {path.name}, as they are."
        except ValidationError as error:
            raise ModelError(f"table {name!r}: not a k_table_*.json: {in_words(error)}") from error
    if not name and encoder == "bundled:clip":
        own = shipped_table(find_card("bundled:large"), alpha)
        if own is not None:
            return own, f"Thresholds: profiled with this encoder for the bundled large model, alpha {own.alpha:g}."
    return FIG_10, (
        "Thresholds: NIRVANA's Fig. 10 (CLIP ViT-L/14, alpha .9) as they are; cosines of other encoders fill another "
        "range, so that shares saved compare policies and are no forecast of quality."
    )


def nearest_earlier(
    vectors: Rows, text_of: npt.NDArray[np.int64], advance: Callable[[int], None] = lambda _: None
) -> Cosines:
    """(requests − 1,): each request's cosine to the nearest one before it, from the second on."""
    points = vectors[text_of]
    found = np.empty(max(len(points) - 1, 0), np.float32)
    for start in range(1, len(points), AT_A_TIME):
        stop = min(start + AT_A_TIME, len(points))
        cosines = points[start:stop] @ points[:stop].T
        cosines[np.arange(stop)[None, :] >= np.arange(start, stop)[:, None]] = -1
        found[start - 1 : stop - 1] = np.minimum(cosines.max(axis=1), 1)
        advance(stop - start)
    return found


def matched(table: KTable, of: str, theirs: Cosines, ours: Cosines) -> tuple[KTable, str]:
    """The table with each threshold where this encoder leaves the same share of requests above it as the encoder `of`,
    for which the table was made, does on the same trace; and the mapping in words.

    theirs, ours: `nearest_earlier` under both. What is kept is how often each K is allowed in an infinite cache, not
    which requests it is allowed for.
    """
    levels, said = [], []
    for level in table.levels:
        share = float((theirs > level.min_similarity).mean())
        threshold = float(np.quantile(ours, 1 - share, method="lower"))
        levels.append(Level(level.k, threshold))
        said.append(f"K = {level.k}: {level.min_similarity:.3f} → {threshold:.3f} ({share:.1%})")
    words = f"Thresholds: {table.source or 'the table'}, made for {of}, at the same quantiles here: {'; '.join(said)}."
    return replace(table, levels=tuple(levels), encoder_hash="", source=f"{table.source}, quantile-matched"), words
