"""Run a whole replay: read a trace, replay every policy at every budget, and return the summary."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.kept import Kept
from services.replay.policy import PolicySettings
from services.replay.results.figures import Run, counted, figures
from services.replay.run import (
    STEPS,
    Offered,
    Options,
    Prepared,
    Timings,
    bounds,
    embedded,
    prepare,
    replay,
    state_bytes,
)
from services.replay.simulated.bound import Bound
from services.replay.simulated.thresholds import k_table, matched, nearest_earlier
from services.replay.simulated.timed import Fleet
from services.replay.traces.encoders import TextEncoder, open_encoder
from services.replay.traces.surrogate import MODM_ENDS, read_curve
from services.replay.traces.trace import DEFAULT_SIZE, Trace, poisson, read_trace
from shared.domain.errors import InvalidRequestError
from shared.models.card import ModelCard
from shared.models.k_table import MODM, KTable
from shared.runtime.progress import Bar

WARMUP = 10_000
PACKAGES = ("afterimage", "numpy", "torch", "transformers", "usearch", "scikit-learn")


@dataclass(frozen=True)
class Asked:
    """One replay as the command line and the study file request it."""

    trace: Path
    policies: Sequence[tuple[str, PolicySettings]]
    states: Sequence[int]
    """Budgets in latents of the default size, or in entries (`entries`)."""
    entries: bool = False
    fleet: Fleet | None = None
    """Workers in virtual time; None: decisions alone."""
    encoder: str = "bundled:clip"
    table: str = ""
    """Similarity → K table; see `k_table`."""
    table_encoder: str = ""
    """Encoder that the table was made for. Its thresholds are then matched by quantiles; empty: used unchanged."""
    alpha: float = 0.95
    warmup: int | None = None
    skip: int = 0
    limit: int = 0
    rate_per_s: float = 0.0
    recorded_times: bool = False
    seed: int = 0
    honour_sizes: bool = False
    schedule: ModelCard | None = None
    """Model whose limits bound the trace's own T, and whose schedule decides which states fit which T.
    None: every request takes T = 50."""
    neighbours: int = 64
    bound: bool = True
    frames: int = 0
    """Frames of every request; 0: the trace's own."""
    pair_table: str = ""
    """K table for pairs, a pair_k_table_*.json; empty: the same as for whole prompts."""
    embeddings: Path = Path(".afterimage/embeddings")
    anew: bool = False
    """Decide every policy again, also those that an earlier run decided with the same inputs."""


def study(asked: Asked, bar: Bar) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the summary, as written to summary.json, and the arrays of decisions.npz.

    Raises ConfigurationError, ModelError and InvalidRequestError for a replay that cannot run.
    """
    bar(f"preparing: the trace {asked.trace.name}", None)
    trace, arrivals = trace_of(asked)
    warmup = warmup_of(asked, trace)
    encoder = open_encoder(asked.encoder)
    table, thresholds = _thresholds(asked, trace, encoder, bar)
    bar(f"preparing: {len(trace):,} requests, their embeddings and neighbours", None)
    surrogate = any(policy.is_surrogate for _, policy in asked.policies)
    pictures = (read_curve()[0], MODM_ENDS) if surrogate else None
    parts = any(policy.pairs for _, policy in asked.policies)
    of_pairs = k_table(asked.pair_table, asked.encoder, asked.alpha)[0] if asked.pair_table else None
    options = Options(
        table, warmup, asked.neighbours, asked.honour_sizes, pictures, asked.schedule, parts=parts, pair_table=of_pairs
    )
    prepared = prepare(trace, encoder, asked.embeddings, options, bar)
    each = 1 if asked.entries else state_bytes(DEFAULT_SIZE)
    budgets = [states * each for states in asked.states]
    taken: list[tuple[str, int]] = []
    kept = Kept(asked.embeddings / encoder.hash, prepared.load)
    offered = Offered(budgets, asked.entries, asked.fleet, kept, asked.anew)
    runs = list(
        replay(prepared.load, asked.policies, offered, bar, lambda name, room: taken.append((name, room // each)))
    )
    start = time.monotonic()
    bounded = asked.bound and any(run.bounded for run in runs)
    may_keep = sorted({k for _, policy in asked.policies for k in policy.capture_steps})
    upper = bounds(prepared.load, budgets, warmup, may_keep, bar) if bounded else []
    prepared.timings.bound_s = time.monotonic() - start
    bar("figures", None)
    about = about_trace(asked, trace, warmup, arrivals)
    summary = _summary(asked, about, encoder, table, thresholds, prepared, runs, upper)
    summary["taken_over"] = [{"policy": name, "states": states} for name, states in taken]
    starts = {f"{run.room // each}/{run.policy}": run.decisions.start_step[warmup:] for run in runs}
    return summary, of_requests(trace, warmup) | starts


def of_requests(trace: Trace, warmup: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of decisions.npz that describe the counted requests: users, and T if each has its own."""
    own = {} if trace.steps is None else {"steps": trace.steps[warmup:]}
    return {"users": trace.users[warmup:], **own}


def trace_of(asked: Asked) -> tuple[Trace, str]:
    """Return the trace cut to its requests, with arrivals, and a description of the arrivals."""
    whole = read_trace(asked.trace, asked.schedule.max_steps if asked.schedule else None)
    whole = replace(whole, frames=asked.frames or whole.frames)
    trace = whole[asked.skip : asked.skip + asked.limit if asked.limit else None]
    if not len(trace):
        raise InvalidRequestError("skip", f"must be below the {len(whole):,} requests of the trace", asked.skip)
    if asked.fleet is not None and asked.fleet.closed:
        return trace, "each request arrives when a worker is free"
    if asked.recorded_times:
        return trace, "arrivals as recorded"
    rate = asked.rate_per_s or trace.mean_rate_per_s
    return poisson(trace, rate, asked.seed), f"Poisson arrivals, {rate:.3g} requests a second, seed {asked.seed}"


def warmup_of(asked: Asked, trace: Trace) -> int:
    """Return the number of warm-up requests, which come first and are not counted."""
    warmup = min(WARMUP, len(trace) // 10) if asked.warmup is None else asked.warmup
    counted(warmup, trace)
    return warmup


def about_trace(asked: Asked, trace: Trace, warmup: int, arrivals: str) -> dict[str, Any]:
    """Return the trace's part of the summary."""
    return {
        "name": asked.trace.name,
        "digest": trace.digest,
        "requests": len(trace),
        "users": len(set(trace.users.tolist())),
        "warmup": warmup,
        **({"frames": trace.frames} if trace.frames > 1 else {}),
        "arrivals": arrivals,
        **({} if trace.steps is None else {"steps": _spread(trace.steps)}),
    }


def _spread(steps: npt.NDArray[np.int64]) -> dict[str, float]:
    return {"least": int(steps.min()), "mean": float(steps.mean()), "most": int(steps.max())}


def _thresholds(asked: Asked, trace: Trace, encoder: TextEncoder, bar: Bar) -> tuple[KTable, str]:
    """Return the K table and its description; with `table_encoder` its thresholds are moved to this encoder."""
    table, words = k_table(asked.table, asked.table_encoder or asked.encoder, asked.alpha)
    if not asked.table_encoder:
        return table, words
    cosines = []
    for name, one in ((asked.table_encoder, open_encoder(asked.table_encoder)), (asked.encoder, encoder)):
        vectors, text_of = embedded(trace.prompts, one, asked.embeddings, bar, Timings())
        cosines.append(nearest_earlier(vectors, text_of, bar(f"nearest by {name}", len(trace) - 1)))
    return matched(table, asked.table_encoder, *cosines)


def _summary(
    asked: Asked,
    about: dict[str, Any],
    encoder: TextEncoder,
    table: KTable,
    thresholds: str,
    prepared: Prepared,
    runs: Sequence[Run],
    upper: Sequence[Bound],
) -> dict[str, Any]:
    """Return the summary; its `policies` are those of the first budget."""
    load, each = prepared.load, len(asked.policies)
    budgets = [
        {
            "states": states,
            "of": "entries" if asked.entries else "states",
            "max_bytes": None if asked.entries else states * state_bytes(DEFAULT_SIZE),
            "bound": asdict(upper[place]) if upper else None,
            "policies": {
                run.policy: figures(run, load.trace, about["warmup"], load.steps, asked.fleet)
                for run in runs[place * each : (place + 1) * each]
            },
        }
        for place, states in enumerate(asked.states)
    ]
    settings = {
        "policies": {name: policy.model_dump(mode="json") for name, policy in asked.policies},
        "sizes_honoured": asked.honour_sizes,
        **about_steps(asked),
        "neighbours": asked.neighbours,
        "skip": asked.skip,
        "limit": asked.limit,
        "seed": asked.seed,
        "fleet": asdict(asked.fleet) if asked.fleet else None,
        "surrogate": _surrogate() if load.pictures is not None else None,
    }
    return {
        "policies": budgets[0]["policies"],
        "trace": about,
        "encoder": {"name": asked.encoder, "hash": encoder.hash, "dim": encoder.dim},
        "thresholds": thresholds,
        "table": about_table(table),
        "budgets": budgets,
        "settings": settings,
        "timings": asdict(prepared.timings),
        **where_and_when(),
    }


def _surrogate() -> dict[str, Any]:
    """Return the surrogate of text–image similarities, and its measured accuracy on real images."""
    _, measured = read_curve()
    kept = ("similarity", "share", "spread", "check", "pictures", "model", "weights_hash")
    return {"table": MODM.source, "ends": MODM_ENDS, **{name: measured[name] for name in kept}}


def about_steps(asked: Asked) -> dict[str, Any]:
    """Return T of every request; or null, with the model whose schedule is used, if each request has its own T."""
    card = asked.schedule
    return {"steps": STEPS} if card is None else {"steps": None, "schedule": f"{card.name} ({card.sampler_id})"}


def about_table(table: KTable) -> dict[str, Any]:
    return {"source": table.source, "steps": table.steps, "levels": [asdict(level) for level in table.levels]}


def where_and_when() -> dict[str, Any]:
    """Return machine, versions and time for the summary."""
    return {
        "machine": machine(),
        "versions": {name: _version(name) for name in PACKAGES},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine() -> dict[str, Any]:
    """Return the machine of the replay and its load average."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
