"""Regions: the steps in which a run from another image's latent need not compute what that image shows already (Chorus,
arXiv 2604.04451; docs/adr/0023-regions.md)."""

from __future__ import annotations

WHOLE_AT_END = 3
"""Last steps, in a run of 50, that compute every patch, which repairs seams."""
IN_A_ROW = 4
"""Steps in a row, in a run of 50, for which a held patch may take a block's last output."""


def reuses_in_a_row(steps: int) -> int:
    """Return the steps in a row for which a held patch may take a block's last output, in a run of T = `steps`."""
    return IN_A_ROW * steps // 50


def region_until(start_step: int, steps: int) -> int:
    """Return the last step that holds patches in a run of T = `steps` from `start_step`; 0: too few steps are left.

    The first step computes all patches: it finds those that change."""
    until = steps - max(round(WHOLE_AT_END * steps / 50), 1)
    return until if reuses_in_a_row(steps) and until - start_step > 1 else 0
