"""Which K a similarity allows, and which K is there (NIRVANA §5.3.1, Fig. 10; holes: §5.4)."""

from __future__ import annotations

from collections.abc import Iterable

from shared.models.k_table import KTable


def shifted(min_similarity: float, savings: float) -> float:
    """A threshold under the savings ↔ quality knob (NIRVANA §5.3.1, "Quality vs. performance tradeoff").

    The knob scales the distance to identity, 1 − similarity: halved at 0 (best quality), as profiled at .5, doubled at
    1 (most steps saved). A distance fits every encoder, whatever range its cosines fill.
    """
    return 1 - (1 - min_similarity) * 4 ** (savings - 0.5)


def wished_step(table: KTable, similarity: float, steps: int, savings: float = 0.5) -> int:
    """The largest K the table allows above this similarity, scaled from the table's T to `steps`: K·steps/T rounds
    down. 0: start from noise."""
    allowed = (level.k for level in table.levels if similarity > shifted(level.min_similarity, savings))
    return max(allowed, default=0) * steps // table.steps


def largest_present(present: Iterable[int], wished: int) -> int:
    """Handling of holes: the largest K that is there and not above the wished one; 0 when none is (NIRVANA §5.4)."""
    return max((k for k in present if 0 < k <= wished), default=0)


def scaled(ks: Iterable[int], steps: int, of: int = 50) -> tuple[int, ...]:
    """Steps of T = `of` as steps of a run of `steps`, rounded down, each once, none of them the start or the end."""
    return tuple(sorted({k * steps // of for k in ks} - {0, steps}))
