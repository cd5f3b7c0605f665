"""What the summaries of replays say in the terms of the papers' own figures: h(K), savings at K, ages, orders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.replay.results.figures import AGES_S

PAPERS = Path(__file__).parent / "paper_shapes.json"
"""What the papers' text says of these figures, and where."""
BUDGETS = (1_000, 10_000, 100_000)
ENTRIES = "entries"
"""The folder of bench/replay/ whose budgets count pictures, or prompts with all their states, and not states."""
UNLIMITED = "infinite"
"""The policy that evicts nothing, whatever the budget."""
GROWING = (UNLIMITED, "nirvana-infinite")
"""All that evict nothing."""
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
"""FlexCache's names → ours: what each paper describes (only LRBU is kept on hits), and alike but for what leaves."""

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """What one replay found of some policies."""

    folder: str
    of: str
    """What its budgets count."""
    found: Mapping[int, Mapping[str, Figures]]
    """By budget, then by policy: the entries of summary.json."""
    left_out: tuple[str, ...]
    """Asked for and not there."""
    steps: int
    """T."""
    requests: int
    """Counted, after the warm-up."""

    def rows(self) -> Iterator[tuple[str, str, Figures]]:
        """(budget in words, policy, its figures); what has no budget comes once, at the end."""
        last = max(self.found, default=0)
        for budget, policies in self.found.items():
            for name, one in policies.items():
                if name not in GROWING:
                    yield f"{budget:,} {self.of}", name, one
                elif budget == last:
                    yield "unlimited", name, one


def read_shape(replays: Path, folder: str, policies: Sequence[str]) -> Shape:
    """Those policies of `folder`'s summary, in this order, at BUDGETS; nothing where there is no summary."""
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
    """h(K): share of the requests that started at step K or later (NIRVANA Fig. 15, cumulative)."""
    return sum(count for start, count in one["k_histogram"].items() if int(start) >= k) / max(one["requests"], 1)


def saved_at(one: Figures, k: int, steps: int) -> float:
    """Share of all steps that those saved who started at K itself; over all K this adds up to `steps_saved`."""
    return one["k_histogram"].get(str(k), 0) / max(one["requests"], 1) * k / steps


def skipped(one: Figures, steps: int) -> float:
    """Steps that a hit skips on average; 0 where nothing hits."""
    return one["steps_saved"] * steps / one["hit_rate"] if one["hit_rate"] else 0.0


def within(one: Figures, age_s: int) -> float:
    """Share of the hits whose state or picture was at most so old; `age_s` is one of AGES_S."""
    counts = one["reuse_age_histogram"]
    return sum(counts[: AGES_S.index(age_s) + 1]) / max(sum(counts), 1)


def over_stream(one: Figures) -> list[tuple[float, float]]:
    """(hit rate, throughput beside no cache's) in each part of the stream.

    One request is served after the other, as NIRVANA §7.1 does, so that throughput is the inverse of the steps run.
    """
    return [(hits, throughput(saved)) for hits, saved in zip(one["hit_parts"], one["parts"], strict=True)]


def throughput(saved: float) -> float:
    """Images per unit of time where the share `saved` of the steps is saved; without a cache 1."""
    return 1 / (1 - saved) if saved < 1 else float("inf")


def rising(values: Mapping[str, float]) -> str:
    """Names from the least to the most, = between two that agree to a tenth of a per cent."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    words = [name for name, _ in ordered[:1]]
    for (_, before), (name, value) in pairwise(ordered):
        words += ["=" if round(value, 3) == round(before, 3) else "<", name]
    return " ".join(words)
