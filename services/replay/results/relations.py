"""The savings of a policy by relation: how each request relates to the one whose state or image started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.replay.simulated.decisions import Decisions
from services.replay.traces.trace import Trace
from services.retriever.relation import CLOSE_WORDS, jaccard, normalised
from shared.domain.types import Relation

RELATIONS = {
    Relation.REROLL: "re-rolls", Relation.EDIT: "edits", Relation.TOPIC: "new topics", Relation.OTHER: "other users",
}  # fmt: skip
"""Names of the relations in tables and plots."""


def by_relation(made: Decisions, trace: Trace, warmup: int, steps: int) -> dict[str, dict[str, float]]:
    """Return for each relation the share of the counted requests that it started, and the share of all steps that it
    saved.

    Two prompts of a user are compared by their words alone, as `load.edit_structure` compares consecutive ones:
    cosines of different encoders have different ranges. A trace has no seeds, so an equal prompt is a re-roll.
    """
    asked = int(trace.asked(steps)[warmup:].sum())
    counts, saved = dict.fromkeys(Relation, 0), dict.fromkeys(Relation, 0)
    for request in np.flatnonzero(made.start_step[warmup:] > 0) + warmup:
        kind = _relation(trace, int(request), int(made.source[request]))
        counts[kind] += 1
        saved[kind] += int(made.start_step[request])
    of = len(trace) - warmup
    return {kind.value: {"hits": counts[kind] / of, "steps_saved": saved[kind] / asked} for kind in Relation}


def without_rerolls(relations: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the share of steps saved if every re-roll starts from noise."""
    return sum(one["steps_saved"] for kind, one in relations.items() if kind != Relation.REROLL.value)


def _relation(trace: Trace, request: int, source: int) -> Relation:
    if source < 0 or trace.users[request] != trace.users[source]:  # below 0: unknown
        return Relation.OTHER
    asked, made = normalised(trace.prompts[request]), normalised(trace.prompts[source])
    if asked == made:
        return Relation.REROLL
    return Relation.EDIT if jaccard(asked, made) > CLOSE_WORDS else Relation.TOPIC
