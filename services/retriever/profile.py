"""Algorithm 2 as this project reads it: from measured pictures to the similarity → K table (NIRVANA §5.3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from shared.models.k_table import Cell, KTable, Level

CONFIDENCE = 0.95
"""One-sided."""
CELL_ROWS = 40
"""Rows in one band of similarity: enough for a bound, few enough to see where quality falls."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One picture started at K from another prompt's state, beside the same prompt and seed drawn from noise."""

    k: int
    """Of the table's T."""
    similarity: float
    """Cosine of the two prompts' embeddings."""
    quality_ratio: float
    """CLIP score from state K ÷ CLIP score from noise."""
    kept: bool | None = None
    """Whether the attribute that differs between the prompts came out as asked; None where no judge knows."""
    kept_from_noise: bool | None = None
    """The same for the picture from noise."""
    kind: str = ""
    """What differs: paraphrase, style, light, colour, size/position, background, object, unrelated."""


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
    """threshold(K): the lowest similarity above which every band's 95 % lower bound stays ≥ α, for the quality ratio
    and, where a judge knows it, for the changed attribute.

    The printed algorithm (`min{s | ∀I: quality(I) > α}`) contradicts its text; Fig. 9 shows a curve of quality over
    similarity that must stay above α to the right of the threshold, and that is what is computed. Monotone in K; a K
    that is never safe is left out, and so is every K above it. Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("a profile needs at least one row")
    levels: list[Level] = []
    cells: list[Cell] = []
    floor: float | None = -1.0
    for k in sorted({row.k for row in rows}):
        bands = measure([row for row in rows if row.k == k], alpha=alpha, cell_rows=cell_rows)
        cells += bands
        own = threshold(bands)
        floor = None if own is None or floor is None else max(floor, own)
        if floor is not None:
            levels.append(Level(k, floor))
    return KTable(tuple(levels), steps, model, weights_hash, encoder_hash, alpha, cells=tuple(cells))


def measure(rows: Sequence[ProfileRow], *, alpha: float, cell_rows: int = CELL_ROWS) -> list[Cell]:
    """One K's rows in bands of about `cell_rows`, most similar first; equal similarities share a band."""
    return [_cell(band, alpha) for band in _bands(sorted(rows, key=lambda row: -row.similarity), cell_rows)]


def threshold(bands: Iterable[Cell]) -> float | None:
    """The lower end of the last safe band before the first unsafe one, seen from the most similar; None: never safe."""
    lowest: float | None = None
    for band in bands:
        if not band.safe:
            break
        lowest = band.min_similarity
    # similarities are compared with `>` (Fig. 10): the band's own lowest row must pass
    return None if lowest is None else math.nextafter(lowest, -math.inf)


def by_kind(rows: Sequence[ProfileRow], *, alpha: float) -> dict[tuple[str, int], Cell]:
    """What each K costs per kind of change: (kind, K) → one cell over every similarity."""
    keys = sorted({(row.kind, row.k) for row in rows})
    return {key: _cell([row for row in rows if (row.kind, row.k) == key], alpha) for key in keys}


def mean_lower_bound(values: Sequence[float]) -> float:
    """95 % one-sided lower confidence bound of the mean, Student's t; −inf for fewer than three values."""
    n = len(values)
    if n < 3:
        return -math.inf
    return fmean(values) - _student_t(n - 1) * stdev(values) / math.sqrt(n)


def share_lower_bound(successes: int, of: int) -> float:
    """95 % one-sided lower confidence bound of a share (Wilson); 0 for none."""
    if of == 0:
        return 0.0
    z = NormalDist().inv_cdf(CONFIDENCE)
    centre = successes + z * z / 2
    spread = z * math.sqrt(successes * (of - successes) / of + z * z / 4)
    return (centre - spread) / (of + z * z)


def _student_t(degrees: int) -> float:
    """The one-sided 95 % quantile, Cornish-Fisher: within .01 of the exact value from 4 degrees on."""
    z = NormalDist().inv_cdf(CONFIDENCE)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def _bands(rows: Sequence[ProfileRow], size: int) -> list[list[ProfileRow]]:
    bands: list[list[ProfileRow]] = []
    for row in rows:
        full = not bands or len(bands[-1]) >= size
        if bands and (not full or row.similarity == bands[-1][-1].similarity):
            bands[-1].append(row)
        else:
            bands.append([row])
    if len(bands) > 1 and len(bands[-1]) < size // 2:  # too few for a bound of their own
        rest = bands.pop()
        bands[-1].extend(rest)
    return bands


def _cell(rows: Sequence[ProfileRow], alpha: float) -> Cell:
    ratios = [row.quality_ratio for row in rows]
    bound = mean_lower_bound(ratios)
    judged = [row for row in rows if row.kept is not None and row.kept_from_noise is not None]
    kept = sum(bool(row.kept) for row in judged)
    kept_from_noise = sum(bool(row.kept_from_noise) for row in judged)
    kept_bound = share_lower_bound(kept, len(judged)) / (kept_from_noise / len(judged)) if kept_from_noise else None
    return Cell(
        k=rows[0].k,
        min_similarity=min(row.similarity for row in rows),
        max_similarity=max(row.similarity for row in rows),
        count=len(rows),
        mean_ratio=fmean(ratios),
        lower_bound=bound,
        judged=len(judged),
        kept=kept / len(judged) if judged else None,
        kept_from_noise=kept_from_noise / len(judged) if judged else None,
        kept_lower_bound=kept_bound,
        safe=bound >= alpha and (kept_bound is None or kept_bound >= alpha),
    )
