"""What a replay says about a policy: shares, histograms and ages, over the requests that count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.results.compare import interval
from services.replay.results.fairness import fairness
from services.replay.simulated.decisions import Decisions
from services.replay.simulated.timed import Fleet, Served, timed_figures
from services.replay.traces.trace import Trace
from shared.domain.errors import InvalidRequestError

AGES_S = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 28_800, 57_600)
"""Edges of the histogram of reuse ages."""
PARTS = 10
"""Into so many equal parts the requests are cut, to see whether what was saved lasts."""


@dataclass(frozen=True)
class Run:
    """One policy at one budget."""

    policy: str
    title: str
    surrogate: bool
    """Whether it looked for pictures by similarities that stand for theirs."""
    bounded: bool
    """Whether the offline bound is above it: it is one of decisions alone, on states as they are."""
    room: int
    """Bytes, or entries."""
    decisions: Decisions
    seconds: float
    """Of deciding: neither embedding nor finding neighbours is in it."""
    processor_s: float
    """The same in processor time: what a busy machine does not change much."""
    served: Served | None = None
    """None: decisions alone."""
    predicts: bool = False
    """Whether a match predictor was asked before every lookup."""


def counted(warmup: int, trace: Trace) -> int:
    """Return how many requests count; InvalidRequestError where the warm-up leaves none, for nothing has no mean."""
    if not 0 <= warmup < len(trace):
        raise InvalidRequestError("warmup", f"below the {len(trace):,} requests of the trace", warmup)
    return len(trace) - warmup


def figures(run: Run, trace: Trace, warmup: int, steps: int, fleet: Fleet | None = None) -> dict[str, Any]:
    """The policy's entry in summary.json; counts are of the requests after the warm-up.

    Where each request takes a T of its own, steps saved are Σ steps skipped / Σ steps asked, and K is that of `steps`.
    """
    counted(warmup, trace)
    made = run.decisions
    start, asked = made.start_step[warmup:].astype(np.int64), trace.asked(steps)[warmup:]
    saved, weights = start / asked, asked / asked.mean()
    hits = start > 0
    ages = reuse_ages_s(made, trace, warmup)
    return {
        "title": run.title,
        "surrogate": run.surrogate,
        "bounded": run.bounded,
        "requests": len(start),
        "hit_rate": float(hits.mean()),
        "steps_saved": float(start.mean() / asked.mean()),
        "steps_saved_95": interval(saved, trace.users[warmup:], weights),
        "parts": [
            float(part.mean() / of.mean())
            for part, of in zip(np.array_split(start, PARTS), np.array_split(asked, PARTS), strict=True)
            if len(part)
        ],
        "hit_parts": [float(part.mean()) for part in np.array_split(hits, PARTS) if len(part)],
        "k_histogram": {str(k): count for k, count in sorted(Counter(scaled_from(start, asked, steps)).items())},
        "evictions": int(made.evicted[warmup:].sum()),
        "states": int(made.states[-1]) if len(made.states) else 0,
        "bytes": int(made.bytes[-1]) if len(made.bytes) else 0,
        "room": run.room,
        "reuse_age_s": {str(q): float(np.quantile(ages, q)) for q in (0.1, 0.5, 0.9, 0.99)} if len(ages) else {},
        "reuse_age_histogram": np.histogram(ages, (0, *AGES_S, np.inf))[0].tolist(),
        "own_user": float(own_user(made, trace, warmup)),
        "fairness": fairness(trace.users[warmup:], saved, weights=weights),
        "predictor": predictor(made, warmup) if run.predicts else None,
        "searched": made.searched,
        "seconds": run.seconds,
        "decisions_per_s": len(trace) / run.seconds if run.seconds else 0.0,
        "decisions_per_processor_s": len(trace) / run.processor_s if run.processor_s else 0.0,
        "timed": timed_figures(run.served, trace, warmup, steps, fleet) if run.served and fleet else None,
    }


def scaled_from(start: npt.NDArray[np.int64], asked: npt.NDArray[np.int64], steps: int) -> list[int]:
    """K of `steps` that each start of a run of `asked` steps was scaled from: K·T/steps is rounded down, so this is
    rounded up (`of_50` of the `afterimage` policy). From a state of another T it is where that lies among `steps`,
    be that a K of the table or not."""
    ks: list[int] = (-(-start * steps // asked)).tolist()
    return ks


def reuse_ages_s(made: Decisions, trace: Trace, warmup: int) -> npt.NDArray[np.float64]:
    """Seconds between a hit and the request whose state it started from (MoDM §A.1)."""
    hit = np.flatnonzero(made.source[warmup:] >= 0) + warmup
    return trace.arrival_s[hit] - trace.arrival_s[made.source[hit]]


def own_user(made: Decisions, trace: Trace, warmup: int) -> float:
    """Share of the hits that started from a state of the same user."""
    hit = np.flatnonzero(made.source[warmup:] >= 0) + warmup
    return float((trace.users[hit] == trace.users[made.source[hit]]).mean()) if len(hit) else 0.0


def predictor(made: Decisions, warmup: int) -> dict[str, float | None]:
    """Return counts, and NIRVANA §5.2's two shares.

    `precision` (its c_p): of the requests let through to a lookup, how many found a state to start from. `recall`: of
    those that would have found one, how many were let through. `auc`: the share of all pairs of a request that would
    have hit and one that would not in which the first has the higher score.

    Both are known of every request, since a replay looks up also those that are not let through (and then start from
    noise): what is there is this policy's own cache at that moment. None: a share of nothing.
    """
    let_through, would_hit = made.predicted[warmup:], made.found[warmup:]
    both = int((let_through & would_hit).sum())
    counts = {"let_through": int(let_through.sum()), "would_hit": int(would_hit.sum()), "both": both}
    shares = {"precision": counts["let_through"], "recall": counts["would_hit"]}
    said = {name: both / of if of else None for name, of in shares.items()}
    return {**counts, **said, "auc": auc(made.score[warmup:], would_hit)}


def auc(scores: npt.NDArray[np.float32], positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve, ties counted half; None where all or none are positive."""
    hits = int(positive.sum())
    if hits in (0, len(positive)):
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # the mean rank of equal scores
    return float((rank[positive].sum() - hits * (hits + 1) / 2) / (hits * (len(positive) - hits)))
