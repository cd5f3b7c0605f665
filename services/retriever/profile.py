"""This project's reading of NIRVANA's Algorithm 2: from measured images to the similarity → K table (NIRVANA
§5.3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from shared.models.confidence import CONFIDENCE, ratio_bounds, share_bounds
from shared.models.k_table import Cell, KTable, Level
from shared.models.quality import BOUNDS, UNMEASURED, Measures, Quality, compare

UNRELATED = "unrelated"
"""Kind of the pairs whose prompts have nothing in common."""
CELL_ROWS = 20
"""Rows in the first part of a similarity band: enough for a bound, few enough to see where quality falls."""
ROUNDING = 1e-4
"""Similarities that differ by less count as equal: an index computes them in another order, in float32."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One image started at K from another prompt's state, beside an image of the same prompt and seed from noise."""

    k: int
    """K of the table's T."""
    similarity: float
    """Cosine of the two prompts' embeddings, or of the prompt's and the image's."""
    score: float
    """CLIP score of the image started at K, not below 0."""
    score_from_noise: float = 1.0
    """CLIP score of the image from noise."""
    kept: bool | None = None
    """True if the image shows the attribute that differs between the prompts; None where no judge knows."""
    kept_from_noise: bool | None = None
    """The same for the image from noise."""
    kind: str = ""
    """The kind of difference between the prompts: paraphrase, style, light, colour, size/position, background, object,
    unrelated."""
    measures: Measures = UNMEASURED
    """Look, spread and likeness of the image started at K; score and attribute are above."""
    measures_from_noise: Measures = UNMEASURED
    """The same of the image from noise."""

    @property
    def judged(self) -> bool:
        return self.kept is not None and self.kept_from_noise is not None


def build_table(
    rows: Sequence[ProfileRow],
    *,
    alpha: float,
    steps: int = 50,
    cell_rows: int = CELL_ROWS,
    model: str = "",
    weights_hash: str = "",
    encoder_hash: str = "",
) -> KTable:
    """Build the K table. threshold(K) is the lowest similarity above which every band's 95 % lower bound stays ≥ α: for
    the quality ratio and, where judged, for the changed attribute (docs/adr/0003-algorithm-2.md).

    The printed algorithm (`min{s | ∀I: quality(I) > α}`) contradicts its text. Fig. 9 shows a curve of quality over
    similarity that must stay above α to the right of the threshold; this function computes that. Thresholds are
    monotone in K. A K that is never safe is left out, and so is every K above it. Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("rows must hold at least one row (got none)")
    levels: list[Level] = []
    cells: list[Cell] = []
    least: float | None = -1.0
    for k in sorted({row.k for row in rows}):
        bands = measure([row for row in rows if row.k == k], alpha=alpha, cell_rows=cell_rows)
        cells += bands
        own = threshold(bands)
        least = None if own is None or least is None else max(least, own)
        if least is not None:
            levels.append(Level(k, least))
    return KTable(
        tuple(levels), steps, model, weights_hash, encoder_hash, alpha, cells=tuple(cells), floor=floor_of(rows)
    )


def floor_of(rows: Iterable[ProfileRow]) -> float | None:
    """Return the similarity just below the least similar of the related pairs; None without related pairs.

    An unrelated pair keeps its quality too, since the prompt decides the image's content, but nobody would choose to
    start there. Between the two kinds of pairs nothing was measured (docs/adr/0012-relation.md).
    """
    lowest = min((row.similarity for row in rows if row.kind != UNRELATED), default=None)
    return None if lowest is None else lowest - ROUNDING


def measure(rows: Sequence[ProfileRow], *, alpha: float, cell_rows: int = CELL_ROWS) -> list[Cell]:
    """Group one K's rows into bands, most similar first; equal similarities share a band.

    A band begins with about `cell_rows` rows and grows while it proves nothing. It ends where it is safe, or where the
    last rows added prove a loss of quality. Remaining rows that are too few to prove anything are joined to the band
    above.
    """
    cells: list[Cell] = []
    taken: list[ProfileRow] = []
    pooled: list[ProfileRow] = []
    for band in _bands(sorted(rows, key=lambda row: -row.similarity), cell_rows):
        pooled += band
        cell = _cell(pooled, alpha)
        if cell.safe or _proves_loss(band, alpha):
            cells.append(cell)
            taken, pooled = pooled, []
    if not pooled:
        return cells
    rest = _cell(pooled, alpha)
    if cells and cells[-1].safe and _too_few(rest, alpha, cell_rows):
        joined = _cell([*taken, *pooled], alpha)
        if joined.safe:
            return [*cells[:-1], joined]
    return [*cells, rest]


def threshold(bands: Iterable[Cell]) -> float | None:
    """Return the lower end of the last safe band before the first unsafe one, from the most similar; None: never
    safe."""
    lowest: float | None = None
    for band in bands:
        if not band.safe:
            break
        lowest = band.min_similarity
    # similarities are compared with `>` (Fig. 10): the band's own lowest row must pass
    return None if lowest is None else lowest - ROUNDING


def by_kind(rows: Sequence[ProfileRow], *, alpha: float) -> dict[tuple[str, int], Cell]:
    """Return the quality of each K per kind of change: (kind, K) → one cell over every similarity."""
    keys = sorted({(row.kind, row.k) for row in rows})
    return {key: _cell([row for row in rows if (row.kind, row.k) == key], alpha) for key in keys}


def noise_cell(rows: Sequence[ProfileRow], alpha: float) -> Cell:
    """Return the quality of runs of fewer steps from noise; safe if the look keeps its bounds too."""
    cell = _cell(rows, alpha)
    looks = [getattr(cell.quality, name, None) for name in ("contrast", "saturation", "sharpness")]
    return replace(cell, safe=cell.safe and all(BOUNDS["contrast"].holds(look) for look in looks))


def quality_of(rows: Sequence[ProfileRow]) -> Quality:
    """Return fidelity, look, variety and copying of the rows."""
    return compare(
        [replace(row.measures, score=row.score, shown=row.kept) for row in rows],
        [replace(row.measures_from_noise, score=row.score_from_noise, shown=row.kept_from_noise) for row in rows],
    )


def rows_that_prove(alpha: float) -> float:
    """Return how many rows without a loss prove, with 95 % confidence, that a share of at least α is kept: αⁿ ≤ 5 %."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(alpha)) if 0 < alpha < 1 else math.inf


def _bands(rows: Sequence[ProfileRow], size: int) -> list[list[ProfileRow]]:
    bands: list[list[ProfileRow]] = []
    for row in rows:
        full = not bands or len(bands[-1]) >= size
        if bands and (not full or bands[-1][-1].similarity - row.similarity < ROUNDING):
            bands[-1].append(row)
        else:
            bands.append([row])
    return bands


def _cell(rows: Sequence[ProfileRow], alpha: float) -> Cell:
    scores, from_noise = [row.score for row in rows], [row.score_from_noise for row in rows]
    bound = ratio_bounds(scores, from_noise)[0]
    judged = [row for row in rows if row.judged]
    kept, kept_from_noise = _shares(judged)
    kept_bound = share_bounds(*_outcomes(judged))[0] if judged else None
    return Cell(
        k=rows[0].k,
        min_similarity=min(row.similarity for row in rows),
        max_similarity=max(row.similarity for row in rows),
        count=len(rows),
        mean_ratio=fmean(scores) / fmean(from_noise) if any(from_noise) else 0.0,
        lower_bound=bound,
        judged=len(judged),
        kept=kept,
        kept_from_noise=kept_from_noise,
        kept_lower_bound=kept_bound,
        safe=bound >= alpha and (kept_bound is None or (kept_bound >= alpha and len(judged) >= rows_that_prove(alpha))),
        quality=quality_of(rows) if any(row.measures != UNMEASURED for row in rows) else None,
    )


def _proves_loss(rows: Sequence[ProfileRow], alpha: float) -> bool:
    """Return whether the rows prove a loss: even an upper bound is below α."""
    judged = [row for row in rows if row.judged]
    clip = ratio_bounds([row.score for row in rows], [row.score_from_noise for row in rows])[1]
    return clip < alpha or share_bounds(*_outcomes(judged))[1] < alpha


def _too_few(cell: Cell, alpha: float, cell_rows: int) -> bool:
    """Return whether the band has too few rows to be proved safe, however good they are."""
    return cell.count < cell_rows // 2 or 0 < cell.judged < rows_that_prove(alpha)


def _outcomes(judged: Sequence[ProfileRow]) -> tuple[list[bool], list[bool]]:
    return [bool(row.kept) for row in judged], [bool(row.kept_from_noise) for row in judged]


def _shares(judged: Sequence[ProfileRow]) -> tuple[float | None, float | None]:
    if not judged:
        return None, None
    kept, kept_from_noise = _outcomes(judged)
    return fmean(kept), fmean(kept_from_noise)
