"""Choose a replay's similarity → K table, and move a table's thresholds from one encoder to another."""

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
    """Return the table, and the origin of its thresholds in words.

    `nirvana` is Fig. 10; another name is a k_table_*.json. An empty name selects the bundled large model's table if its
    own encoder compares the prompts, else NIRVANA's. Raises ModelError for a missing or wrong file.
    """
    if name not in ("", "nirvana"):
        path = Path(name)
        if not path.is_file():
            raise ModelError(f"table {name!r}: no such file; give nirvana or a k_table_*.json")
        try:
            return read_table(path), f"Thresholds: {path.name}, unchanged."
        except ValidationError as error:
            raise ModelError(f"table {name!r}: not a k_table_*.json: {in_words(error)}") from error
    if not name and encoder == "bundled:clip":
        own = shipped_table(find_card("bundled:large"), alpha)
        if own is not None:
            return own, f"Thresholds: profiled with this encoder for the bundled large model, alpha {own.alpha:g}."
    return FIG_10, (
        "Thresholds: NIRVANA's Fig. 10 (CLIP ViT-L/14, alpha .9), unchanged. Cosines of other encoders have another "
        "range: the shares saved compare policies and do not forecast quality."
    )


def nearest_earlier(
    vectors: Rows, text_of: npt.NDArray[np.int64], advance: Callable[[int], None] = lambda _: None
) -> Cosines:
    """Return the cosine of each request but the first to its nearest earlier request, shape (requests − 1,)."""
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
    """Move a table made for the encoder `of` to another encoder; return the table and the mapping in words.

    `theirs` and `ours` are `nearest_earlier` of the same trace under both encoders. Each new threshold has the same
    share of requests above it as the old one. This keeps how often an infinite cache allows each K, but not the
    requests that it allows the K for.
    """
    levels, said = [], []
    for level in table.levels:
        share = float((theirs > level.min_similarity).mean())
        threshold = float(np.quantile(ours, 1 - share, method="lower"))
        levels.append(Level(level.k, threshold))
        said.append(f"K = {level.k}: {level.min_similarity:.3f} → {threshold:.3f} ({share:.1%})")
    words = f"Thresholds: {table.source or 'the table'}, made for {of}, at the same quantiles here: {'; '.join(said)}."
    return replace(table, levels=tuple(levels), encoder_hash="", source=f"{table.source}, quantile-matched"), words
