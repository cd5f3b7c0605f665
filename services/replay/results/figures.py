"""Compute the figures of a policy over the counted requests: shares, histograms and ages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.results.compare import interval
from services.replay.results.fairness import fairness
from services.replay.results.relations import by_relation, without_rerolls
from services.replay.simulated.decisions import Decisions
from services.replay.simulated.timed import Fleet, Served, timed_figures
from services.replay.traces.trace import Trace
from shared.domain.errors import InvalidRequestError

AGES_S = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 28_800, 57_600)
"""Edges of the histogram of reuse ages, seconds."""
PARTS = 10
"""Number of equal parts of the requests; figures per part show whether the savings last."""


@dataclass(frozen=True)
class Run:
    """Decisions of one policy at one budget."""

    policy: str
    title: str
    surrogate: bool
    """The policy looked up images by surrogate similarities."""
    bounded: bool
    """The offline bound applies: the policy reuses fp16 latents, in budgets of states, without virtual time."""
    room: int
    """Budget in bytes, or in entries."""
    decisions: Decisions
    seconds: float
    """Seconds of deciding, without embedding and neighbour lists."""
    processor_s: float
    """The same in processor seconds, which other work on the machine changes little."""
    served: Served | None = None
    """Times in virtual time; None: decisions alone."""
    predicts: bool = False
    """A match predictor decided before every lookup."""


def counted(warmup: int, trace: Trace) -> int:
    """Return the number of counted requests; raises InvalidRequestError for a warm-up that leaves none."""
    if not 0 <= warmup < len(trace):
        raise InvalidRequestError("warmup", f"must be below the {len(trace):,} requests of the trace", warmup)
    return len(trace) - warmup


def figures(run: Run, trace: Trace, warmup: int, steps: int, fleet: Fleet | None = None) -> dict[str, Any]:
    """Return the policy's entry in summary.json, over the requests after the warm-up.

    With a T for each request, steps saved are Σ steps skipped / Σ steps requested, and K is scaled to `steps`.
    """
    counted(warmup, trace)
    made = run.decisions
    start, asked = made.start_step[warmup:].astype(np.int64), trace.asked(steps)[warmup:]
    saved, weights = start / asked, asked / asked.mean()
    hits = start > 0
    ages = reuse_ages_s(made, trace, warmup)
    relations = by_relation(made, trace, warmup, steps)
    return {
        "title": run.title,
        "surrogate": run.surrogate,
        "bounded": run.bounded,
        "requests": len(start),
        "hit_rate": float(hits.mean()),
        "by_pairs": float((made.second[warmup:] >= 0).mean()),
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
        "by_relation": relations,
        "steps_saved_without_rerolls": without_rerolls(relations),
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
    """Scale each start of a run of `asked` steps back to K of `steps`.

    Starts are K·T/steps rounded down, so the result is rounded up (like `of_50` of the `afterimage` policy). A start
    from a state of another T may give a number that is no K of the table.
    """
    ks: list[int] = (-(-start * steps // asked)).tolist()
    return ks


def reuse_ages_s(made: Decisions, trace: Trace, warmup: int) -> npt.NDArray[np.float64]:
    """Return the seconds between each hit and the request whose state it started from (MoDM §A.1)."""
    hit = np.flatnonzero(made.source[warmup:] >= 0) + warmup
    return trace.arrival_s[hit] - trace.arrival_s[made.source[hit]]


def own_user(made: Decisions, trace: Trace, warmup: int) -> float:
    """Return the share of the hits that started from a state of the same user."""
    hit = np.flatnonzero(made.source[warmup:] >= 0) + warmup
    return float((trace.users[hit] == trace.users[made.source[hit]]).mean()) if len(hit) else 0.0


def predictor(made: Decisions, warmup: int) -> dict[str, float | None]:
    """Return the counts of a match predictor, and its precision, recall and AUC.

    `precision` (c_p of NIRVANA §5.2): share of the requests let through to a lookup that found a state to start from.
    `recall`: share of the requests that would have found a state that were let through. `auc`: share of all pairs, of a
    request that would have hit and one that would not, where the first has the higher score.

    A replay looks up every request in this policy's cache at that moment. Requests that are not let through start from
    noise. A share of zero requests is None.
    """
    let_through, would_hit = made.predicted[warmup:], made.found[warmup:]
    both = int((let_through & would_hit).sum())
    counts = {"let_through": int(let_through.sum()), "would_hit": int(would_hit.sum()), "both": both}
    shares = {"precision": counts["let_through"], "recall": counts["would_hit"]}
    said = {name: both / of if of else None for name, of in shares.items()}
    return {**counts, **said, "auc": auc(made.score[warmup:], would_hit)}


def auc(scores: npt.NDArray[np.float32], positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve, ties counted half; None if all or none are positive."""
    hits = int(positive.sum())
    if hits in (0, len(positive)):
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # the mean rank of equal scores
    return float((rank[positive].sum() - hits * (hits + 1) / 2) / (hits * (len(positive) - hits)))
