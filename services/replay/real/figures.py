"""What a replay on real models says about a policy: the other modes' figures, and what only drawing can tell."""

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
    "seconds": "wall seconds from the first arrival to the last picture, warm-up included; not of deciding alone",
    "decisions_per_s": "no figure: deciding is not timed apart from drawing",
    "evictions": "latents or finished pictures that left once the first counted request was sent",
    "predictor": "no recall: what a predicted miss would have found is not looked up; precision is in `real.predictor`",
    "searched": "no figure: the index that serves answers every search",
    "timed.busy, timed.rows, timed.longest_queue": "no figure: the services report them of no trace's requests alone",
    "timed.queued_s": "as the gateway and the worker time it; no figure one at a time, when nobody queues",
}
"""What keys of the summary mean in this mode, where that is not what they mean in the others."""
Floats = npt.NDArray[np.float64]


def decisions_of(sitting: Sitting) -> Decisions:
    """Where each request started, as the other modes have it; of evictions only the total is known."""
    made = nothing_decided(len(sitting.answers))
    request_of = {one.job: one.request for one in sitting.answers if one.job}
    for one in sitting.answers:
        made.start_step[one.request], made.similarity[one.request] = one.start_step, one.similarity
        if one.start_step:
            made.source[one.request] = request_of[one.entry]
    made.states[:], made.bytes[:] = sitting.states, sitting.bytes
    return made


def real_figures(run: Run, sitting: Sitting, load: Load, alone_s: Floats) -> dict[str, Any]:
    """The policy's entry in summary.json; alone_s: (requests,), of each one's picture drawn alone, for every policy the
    same."""
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
    """By policy, how much its pictures' CLIP scores differ from those of the same requests drawn without a cache from
    the same noise, with the 95 % interval over users; of all requests and of the hits."""
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
    """Of what a match predictor let through, how much found a state (NIRVANA §5.2); None where it refused nothing."""
    if not any(one.predicted is False for one in counted):
        return None
    let_through = [one for one in counted if one.predicted]
    both = sum(one.start_step > 0 for one in let_through)
    share = both / len(let_through) if let_through else None
    return {"let_through": len(let_through), "both": both, "precision": share}


def _clip(counted: tuple[Answer, ...]) -> dict[str, float | None]:
    """Mean cosine of picture and prompt: of all, of hits, of what was drawn from noise."""
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
    """Latency, throughput and SLO of the requests that count; one that failed is within no SLO."""
    served = [one for one in counted if not one.error]
    latency = np.array([one.latency_s for one in served])
    alone = alone_s[[one.request for one in served]]
    seconds = float(alone_s[0]) if load.trace.steps is None else None
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
    """As the other modes have it; no similarity is a surrogate, and no offline bound is above what takes time."""
    return Run(name, title, False, False, room, decisions_of(sitting), sitting.wall_s, sitting.processor_s)
