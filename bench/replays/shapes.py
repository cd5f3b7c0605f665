"""Compute the papers' figures from the summaries of replays: h(K), savings at K, ages, orders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.replay.results.figures import AGES_S

PAPERS = Path(__file__).parent / "paper_shapes.json"
"""The numbers of these figures in the papers' text, each with its source."""
BUDGETS = (1_000, 10_000, 100_000)
ENTRIES = "entries"
"""The folder of bench/replay/ with budgets in entries: images, or prompts with all their states."""
UNLIMITED = "infinite"
"""The policy that evicts nothing at any budget."""
GROWING = (UNLIMITED, "nirvana-infinite")
"""All policies that evict nothing."""
FIG_15 = ("nirvana", "flexcache", "afterimage", UNLIMITED)
FIG_12 = (
    "nirvana", "nirvana-without-predictor", "nirvana-infinite", "gpt-cache", "retrieval", "crs", "afterimage",
    UNLIMITED,
)  # fmt: skip
FIG_9 = {
    "NIRVANA w/o MP": "nirvana-without-predictor",
    "cache-large": "modm-cache-large",
    "cache-all": "modm-cache-all",
}
"""MoDM's names → ours."""
TABLE_1 = {
    "as its own paper says": {
        "FIFO": "fifo",
        "LRU": "lru",
        "LCBFU": "nirvana-without-predictor",
        "LRBU": "flexcache",
    },
    "on hits too, best state": {
        "FIFO": "fifo-hits",
        "LRU": "lru-hits",
        "LCBFU": "lcbfu-hits",
        "LRBU": "lrbu-hits",
    },
}
"""FlexCache's names → ours, in two readings: as each paper describes its policy (only LRBU keeps states of hits), and
policies that differ in eviction only."""

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """The figures of some policies in one replay."""

    folder: str
    of: str
    """The unit of the budgets: states or entries."""
    found: Mapping[int, Mapping[str, Figures]]
    """The entries of summary.json by budget, then by policy."""
    left_out: tuple[str, ...]
    """Requested policies and budgets that the summary lacks."""
    steps: int
    """T, the denoising steps of each request."""
    requests: int
    """Requests counted, after the warm-up."""

    def rows(self) -> Iterator[tuple[str, str, Figures]]:
        """Yield (budget in words, policy, its figures). Policies that evict nothing come once."""
        last = max(self.found, default=0)
        for budget, policies in self.found.items():
            for name, one in policies.items():
                if name not in GROWING:
                    yield f"{budget:,} {self.of}", name, one
                elif budget == last:
                    yield "unlimited", name, one


def read_shape(replays: Path, folder: str, policies: Sequence[str]) -> Shape:
    """Read `policies`, in this order, at BUDGETS from `folder`'s summary; a missing summary gives an empty shape."""
    path = replays / folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"budgets": []}
    of = "entries" if folder == ENTRIES else "states"
    there = {budget["states"]: budget["policies"] for budget in summary["budgets"] if budget["of"] == of}
    found, lacking = {}, []
    for budget in BUDGETS:
        if budget not in there:
            lacking.append(f"{budget:,} {of}")
            continue
        found[budget] = {name: there[budget][name] for name in policies if name in there[budget]}
        lacking += [f"`{name}` at {budget:,} {of}" for name in policies if name not in there[budget]]
    requests = max((one["requests"] for policies in found.values() for one in policies.values()), default=0)
    return Shape(folder, of, found, tuple(lacking), summary.get("settings", {}).get("steps", 0), requests)


def at_least(one: Figures, k: int) -> float:
    """Compute h(K): the share of the requests that started at step K or later (NIRVANA Fig. 15, cumulative)."""
    return sum(count for start, count in one["k_histogram"].items() if int(start) >= k) / max(one["requests"], 1)


def saved_at(one: Figures, k: int, steps: int) -> float:
    """Compute the share of all steps saved by requests that started at K itself; all K sum to `steps_saved`."""
    return one["k_histogram"].get(str(k), 0) / max(one["requests"], 1) * k / steps


def skipped(one: Figures, steps: int) -> float:
    """Compute the mean number of steps that a hit skips; 0 without hits."""
    return one["steps_saved"] * steps / one["hit_rate"] if one["hit_rate"] else 0.0


def within(one: Figures, age_s: int) -> float:
    """Compute the share of the hits whose state or image was at most `age_s` old; `age_s` is one of AGES_S, seconds."""
    counts = one["reuse_age_histogram"]
    return sum(counts[: AGES_S.index(age_s) + 1]) / max(sum(counts), 1)


def over_stream(one: Figures) -> list[tuple[float, float]]:
    """Return (hit rate, throughput relative to no cache) for each part of the stream.

    Requests are served one after the other, as in NIRVANA §7.1, so throughput is the inverse of the share of steps run.
    """
    return [(hits, throughput(saved)) for hits, saved in zip(one["hit_parts"], one["parts"], strict=True)]


def throughput(saved: float) -> float:
    """Return the throughput, relative to no cache, of a cache that saves the share `saved` of the steps."""
    return 1 / (1 - saved) if saved < 1 else float("inf")


def rising(values: Mapping[str, float]) -> str:
    """Return the names in ascending order of their values, with = between values equal to a tenth of a per cent."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    words = [name for name, _ in ordered[:1]]
    for (_, before), (name, value) in pairwise(ordered):
        words += ["=" if round(value, 3) == round(before, 3) else "<", name]
    return " ".join(words)
