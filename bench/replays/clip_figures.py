"""Figures of replays of clips in the form of FlexCache's: savings, throughput, hits, similarities and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.results.figures import Run
from services.replay.simulated.decisions import Decisions
from services.replay.traces.load import Load

Figures = dict[str, Any]
LEVELS = (0.65, 0.75, 0.85, 0.9, 0.95)
"""Similarities above which NIRVANA's Fig. 10 allows K = 5, 10, 15, 20, 25."""
WINDOW = 1000
"""Requests of one point of the curves over time (§6.2.2)."""
MISS_S, STEP_S, EXTRACTION_S = 242.0, (242 - 123) / 25, 3.6 + 0.14
"""The paper's clip on an A100, its step, and extraction with lookup (§6.2.1)."""
MACHINE_PER_H, STORAGE_PER_GB_MONTH, CACHE_GB = 3.67, 0.1, 1000
"""Prices and cache of the paper (§6.2.6), dollars."""


def of_run(run: Run, fill: int, steps: int, alone_s: float) -> Figures:
    """Return hits, savings and throughput of the requests after the fill; throughput without a cache is 1."""
    made, start = run.decisions, run.decisions.start_step[fill:].astype(float)
    found: Figures = {
        "requests": len(start),
        "bytes": int(made.bytes[-1]),
        "room": run.room,
        "hit_rate": float((start > 0).mean()),
        "of_pairs": float((made.second[fill:] >= 0).mean()),
        "steps_saved": float(start.mean() / steps),
        "ks": {str(k): count / len(start) for k, count in sorted(Counter(start.astype(int).tolist()).items())},
        "hits_over_time": windows((start > 0).astype(float)),
    }
    if run.served is not None:
        seconds = np.diff(run.served.done_at[fill - 1 :])
        found["throughput"] = float(alone_s / seconds.mean())
        found["throughput_over_time"] = [alone_s / mean for mean in windows(seconds)]
    return found


def windows(values: npt.NDArray[np.float64]) -> list[float]:
    """Return the mean of each WINDOW values; of all of them where they are fewer."""
    parts = [values[at : at + WINDOW] for at in range(0, len(values) - WINDOW + 1, WINDOW)] or [values]
    return [float(part.mean()) for part in parts]


def cache_sizes(made: Decisions, steps: int, frames: int) -> Figures:
    """Return Fig. 4: bytes of a cache that grows without eviction, and the savings of each window, for clips and for
    images of the same size: one frame."""
    ends = range(WINDOW, len(made.bytes) + 1, WINDOW)
    clips = [int(made.bytes[end - 1]) for end in ends]
    saved = windows(made.start_step.astype(float))
    return {
        "clips_bytes": clips,
        "images_bytes": [size // frames for size in clips],
        "steps_saved": [one / steps for one in saved[: len(clips)]],
    }


def similarities(load: Load, fill: int) -> Figures:
    """Return Fig. 7: the share of requests whose nearest earlier prompt is above each level; `pair` needs both parts,
    `best` is the better one of whole prompt and pair (§4.2.1)."""
    assert load.parts is not None
    whole, thing, place = (one.neighbours.similarities[fill:, 0] for one in (load, *load.parts))
    pair = np.minimum(thing, place)
    kinds = {"whole": whole, "object": thing, "background": place, "pair": pair, "best": np.maximum(whole, pair)}
    return {name: [float((near > level).mean()) for level in LEVELS] for name, near in kinds.items()}


def with_parts(load: Load) -> float:
    """Return the share of requests whose prompts name both parts."""
    groups = load.parts[0].group_of if load.parts else None
    return 0.0 if groups is None else float((groups >= 0).mean())


def hottest(made: Decisions, fill: int, periods: int = 10, tops: Sequence[float] = (0.01, 0.02, 0.05, 0.1)) -> Figures:
    """Return Fig. 12: the steps that the prompts with the most savings of the first period save in each period, as a
    share of the first. Share of these prompts → periods."""
    parts = [np.arange(fill, len(made.source))[part] for part in _periods(len(made.source) - fill, periods)]
    saved = [_saved_by(made, part) for part in parts]
    order = [source for source, _ in saved[0].most_common()]
    found = {}
    for top in tops:
        chosen = order[: max(1, round(top * len(order)))]
        sums = [sum(one[source] for source in chosen) for one in saved]
        found[f"{top:g}"] = [one / max(sums[0], 1) for one in sums]
    return found


def _periods(count: int, periods: int) -> list[slice]:
    edges = np.linspace(0, count, periods + 1).astype(int).tolist()
    return [slice(one, other) for one, other in pairwise(edges)]


def _saved_by(made: Decisions, requests: npt.NDArray[np.int64]) -> Counter[int]:
    """Return the steps that each source saved; both sources of a pair count."""
    found: Counter[int] = Counter()
    for request in requests.tolist():
        for source in {int(made.source[request]), int(made.second[request])} - {-1}:
            found[source] += int(made.start_step[request])
    return found


def breakdown(measured: Mapping[str, Any]) -> Figures:
    """Return Fig. 13: bytes of a clip's five states by part, relative to one fp16 state. measured: clip_bytes.json."""
    frames, mask = measured["frames"], float(np.mean(measured["masks"]))
    found: Figures = {"uncompressed": {"states": 5.0}}
    for codec, stored in measured["frames_stored"].items():
        parts = {name: stored[name] / frames for name in ("first", "differences", "extra")}
        found[codec] = {**parts, "masks": mask}
    return found


def cost(saved: float, extraction: bool, cache: bool = True) -> float:
    """Return Fig. 22: the dollars of one clip at the paper's prices and seconds; saved: share of the 50 steps."""
    seconds = MISS_S - 50 * saved * STEP_S + (EXTRACTION_S if extraction else 0)
    storage = CACHE_GB * STORAGE_PER_GB_MONTH * seconds / (30 * 86_400) if cache else 0.0
    return seconds * MACHINE_PER_H / 3600 + storage
