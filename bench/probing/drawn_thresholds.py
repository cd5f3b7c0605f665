"""`afterimage up` with thresholds drawn at random, a defence of public entries that ADR 30 does not take.

    AFTERIMAGE_PUBLIC_CROWD=2 python -m bench.probing.drawn_thresholds 1.4 up

An entry of another tenant counts only above a threshold of its own, drawn between LEAST and the given number for each
asking tenant. It stays the same, so asking again averages nothing. Above 1, it hides equal prompts too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from services.retriever import lookup
from shared.domain.types import Entry, Hit

LEAST = 0.65
"""Similarity below which nothing starts anyway."""


def program_of(most: float) -> tuple[Sequence[str], dict[str, Any]]:
    """Return the program for `one_process`, and the settings that it needs. most: 0 for none of this."""
    if not most:
        return ("services",), {}
    return ("bench.probing.drawn_thresholds", str(most)), {"public_crowd": 2}


def threshold(entry_id: str, tenant: str, most: float) -> float:
    """Return the threshold of an entry for an asking tenant, uniform from LEAST to `most`."""
    drawn = int.from_bytes(hashlib.sha256(f"{entry_id}/{tenant}".encode()).digest()[:8], "big") / 2**64
    return LEAST + drawn * (most - LEAST)


def _patch(most: float) -> None:
    """Let thresholds decide where a crowd of tenants would."""

    def above(hits: Sequence[Hit], entries: Mapping[str, Entry], tenant: str, least: int) -> list[Hit]:
        known = [(hit, entries[hit.entry_id]) for hit in hits if hit.entry_id in entries]
        return [
            hit for hit, entry in known if entry.tenant == tenant or hit.similarity >= threshold(entry.id, tenant, most)
        ]

    assert callable(lookup.in_a_crowd)  # type: ignore[attr-defined]  # else nothing would be replaced
    lookup.in_a_crowd = above  # type: ignore[attr-defined]


if __name__ == "__main__":
    from services.cli.app import main

    _patch(float(sys.argv.pop(1)))
    main()
