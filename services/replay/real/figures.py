"""Compute a policy's figures on real models: the figures of every mode, plus CLIP scores, times and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.real.sitting import Answer, Load, Sitting
from services.replay.results.compare import interval
from services.replay.results.figures import Run, figures
from services.replay.simulated.decisions import Decisions, nothing_decided
from services.replay.simulated.timed import SLO_TIMES, quantiles

NOT_HERE = {
    "seconds": "wall seconds from the first arrival to the last image, warm-up included; not of deciding alone",
    "decisions_per_s": "no figure: deciding is not timed apart from generating",
    "evictions": "latents or finished images evicted after the first counted request was sent",
    "predictor": "no recall: predicted misses are not looked up; precision is in `real.predictor`",
    "searched": "no figure: the serving index answers every search",
    "timed.busy, timed.rows, timed.longest_queue": "no figure: the services do not report them by request",
    "timed.queued_s": "as gateway and worker measure it; no figure one at a time, where no request queues",
}
"""Keys of the summary with another meaning, or none, in this mode."""
Floats = npt.NDArray[np.float64]


def decisions_of(sitting: Sitting) -> Decisions:
    """Return the start of each request in the form of the other modes; single evictions are not known.

    A source is unknown (-1) where its own request got an error although its job succeeded."""
    made = nothing_decided(len(sitting.answers))
    request_of = {one.job: one.request for one in sitting.answers if one.job}
    for one in sitting.answers:
        made.start_step[one.request], made.similarity[one.request] = one.start_step, one.similarity
        if one.start_step:
            made.source[one.request] = request_of.get(one.entry, -1)
        if one.second:
            made.second[one.request] = request_of.get(one.second, -1)
    made.states[:], made.bytes[:] = sitting.states, sitting.bytes
    return made


def real_figures(run: Run, sitting: Sitting, load: Load, alone_s: Floats) -> dict[str, Any]:
    """Return the policy's entry in summary.json.

    `alone_s`, shape (requests,), has the seconds of each request's image generated alone, the same for every policy.
    """
    said = figures(run, load.trace, load.warmup, load.steps)
    counted = sitting.answers[load.warmup :]
    return said | {
        "evictions": sitting.evicted,
        "predictor": None,
        "searched": None,
        "decisions_per_s": None,
        "decisions_per_processor_s": None,
        "timed": _timed(counted, load, alone_s),
        "real": {
            "failed": sum(bool(one.error) for one in counted),
            "errors": dict(Counter(one.error for one in counted if one.error).most_common(5)),
            "notes": dict(Counter(note for one in counted for note in one.degraded).most_common(5)),
            "steps_run": sum(one.steps_run for one in counted),
            "wall_s": sitting.wall_s,
            "processor_s": sitting.processor_s,
            "processor_s_per_request": sitting.processor_s / len(sitting.answers),
            "alone_s": sitting.alone_s,
            "clip": _clip(counted),
            "predictor": _precision(counted),
        },
    }


def against_none(policies: Mapping[str, Sitting], none: Sitting, load: Load) -> dict[str, dict[str, Any]]:
    """Compare CLIP scores with those of the same requests and noise without a cache, for all requests and for hits.

    Returns mean difference and 95 % interval over users, by policy.
    """
    plain = {one.request: one.clip for one in none.answers[load.warmup :]}
    found: dict[str, dict[str, Any]] = {}
    for name, sitting in policies.items():
        both = [one for one in sitting.answers[load.warmup :] if None not in (one.clip, plain[one.request])]
        hits = [one for one in both if one.start_step]
        found[name] = {"all": _differs(both, plain, load), "hits": _differs(hits, plain, load)}
    return found


def _differs(answers: list[Answer], plain: Mapping[int, float | None], load: Load) -> dict[str, Any] | None:
    if not answers:
        return None
    less = np.array([(one.clip or 0.0) - (plain[one.request] or 0.0) for one in answers])
    users = load.trace.users[[one.request for one in answers]]
    return {"mean": float(less.mean()), "95": interval(less, users), "pictures": len(answers)}


def _precision(counted: tuple[Answer, ...]) -> dict[str, Any] | None:
    """Return a match predictor's precision (NIRVANA §5.2); None if the predictor refused no request."""
    if not any(one.predicted is False for one in counted):
        return None
    let_through = [one for one in counted if one.predicted]
    both = sum(one.start_step > 0 for one in let_through)
    share = both / len(let_through) if let_through else None
    return {"let_through": len(let_through), "both": both, "precision": share}


def _clip(counted: tuple[Answer, ...]) -> dict[str, float | None]:
    """Return the mean cosine of image and prompt: of all, of hits, and of starts from noise."""
    scored = [one for one in counted if one.clip is not None]
    groups = {
        "all": scored,
        "hits": [one for one in scored if one.start_step],
        "misses": [one for one in scored if not one.start_step],
    }
    return {name: _mean([one.clip or 0.0 for one in some]) for name, some in groups.items()}


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _timed(counted: tuple[Answer, ...], load: Load, alone_s: Floats) -> dict[str, Any]:
    """Return latency, throughput and SLOs of the counted requests; a failed request meets no SLO."""
    served = [one for one in counted if not one.error]
    latency = np.array([one.latency_s for one in served])
    alone = alone_s[[one.request for one in served]]
    seconds = float(alone_s[0]) if load.unusual_steps == load.usual_steps else None
    arrived = load.trace.arrival_s[load.warmup :]
    alike = {
        "latency_s": quantiles(latency),
        "slo": {f"{times:g}": float((latency <= times * alone).sum() / len(counted)) for times in SLO_TIMES},
        "slo_s": {f"{times:g}": seconds and times * seconds for times in SLO_TIMES},
        "busy": None,
        "rows": None,
        "longest_queue": None,
        "curve": [float(value) for value in np.quantile(latency, np.linspace(0, 1, 101))],
    }
    if load.one_at_a_time:
        return alike | {"queued_s": None, "offered_per_s": None, "served_per_s": len(served) / float(latency.sum())}
    done = np.array([load.trace.arrival_s[one.request] + one.latency_s for one in served])
    return alike | {
        "queued_s": quantiles(np.array([one.queue_s for one in served])),
        "offered_per_s": len(arrived) / max(float(arrived[-1] - arrived[0]), 1e-9),
        "served_per_s": len(served) / max(float(done.max() - arrived[0]), 1e-9),
    }


def run_of(name: str, title: str, room: int, sitting: Sitting) -> Run:
    """Return the run in the form of the other modes; it uses no surrogate, and the offline bound does not apply."""
    return Run(name, title, False, False, room, decisions_of(sitting), sitting.wall_s, sitting.processor_s)
