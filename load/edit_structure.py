"""Measure the edit structure of a trace: relations of a user's consecutive prompts, sessions, and sizes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import fmean, median

SESSION_GAP_S = 1800.0
"""Pause of a user, seconds, after which a new session starts."""

NEAR_DUPLICATE = 0.5
"""Jaccard similarity above which two prompts are near-duplicates."""

SIZE_CLASSES = ("main", "portrait", "landscape", "other square")


@dataclass(frozen=True, slots=True)
class Asked:
    """Fields of a request that the statistics need."""

    prompt: str
    user: int
    arrival_s: float
    width: int
    height: int


@lru_cache(maxsize=2**15)  # a user's prompts are compared with each other again and again
def words(prompt: str) -> frozenset[str]:
    """Return the set of lower-case words of a prompt."""
    return frozenset(re.findall(r"\w+", prompt.lower()))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return shared words divided by all words; 1 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 1.0


def relation(before: str, after: str) -> str:
    """Return the relation of a prompt to the previous one: `equal` text, `near` (Jaccard > .5) or `other`."""
    if before == after:
        return "equal"
    return "near" if jaccard(words(before), words(after)) > NEAR_DUPLICATE else "other"


def size_class(width: int, height: int, main: tuple[int, int]) -> str:
    """Return the size's class, one of SIZE_CLASSES."""
    if (width, height) == main:
        return "main"
    if width == height:
        return "other square"
    return "portrait" if height > width else "landscape"


def measure(rows: Iterable[Asked]) -> dict[str, float]:
    """Return the statistics of a trace as name → number; each name says what a share is of.

    A pair is two consecutive requests of one user. A session ends when a user pauses for SESSION_GAP_S. Raises
    ValueError for a trace without a user of two requests.
    """
    trace = sorted(rows, key=lambda row: row.arrival_s)
    by_user: dict[int, list[Asked]] = defaultdict(list)
    for row in trace:
        by_user[row.user].append(row)
    pairs = [pair for asked in by_user.values() for pair in pairwise(asked)]
    if not pairs:
        raise ValueError("the trace needs a user with at least two requests (got none)")
    main = Counter((row.width, row.height) for row in trace).most_common(1)[0][0]
    return {
        **_volume(trace, by_user),
        **_relations(pairs),
        **_sessions(by_user, pairs),
        **_returns(trace),
        **_sizes(trace, pairs, main),
    }


def _volume(trace: Sequence[Asked], by_user: Mapping[int, Sequence[Asked]]) -> dict[str, float]:
    counts = sorted(len(asked) for asked in by_user.values())
    hours = max((trace[-1].arrival_s - trace[0].arrival_s) / 3600, 1e-9)
    hourly: dict[int, set[int]] = defaultdict(set)
    for row in trace:
        hourly[int((row.arrival_s - trace[0].arrival_s) // 3600)].add(row.user)
    whole = [len(users) for hour, users in hourly.items() if hour + 1 <= hours] or [len(by_user)]
    return {
        "requests": len(trace),
        "users": len(by_user),
        "requests per hour": len(trace) / hours,
        "users per hour": fmean(whole),
        "requests per user, mean": fmean(counts),
        "requests per user, median": median(counts),
        "requests per user, 90th percentile": counts[int(0.9 * (len(counts) - 1))],
        "share of users with one request": counts.count(1) / len(counts),
    }


def _relations(pairs: Sequence[tuple[Asked, Asked]]) -> dict[str, float]:
    found = [relation(before.prompt, after.prompt) for before, after in pairs]
    similar = [jaccard(words(before.prompt), words(after.prompt)) for before, after in pairs]
    return {
        "pairs: equal text": found.count("equal") / len(found),
        "pairs: Jaccard > .5, equal included": fmean(value > NEAR_DUPLICATE for value in similar),
        "pairs: near-duplicate, not equal": found.count("near") / len(found),
        "pairs: other": found.count("other") / len(found),
        "pairs: Jaccard > .75, not equal": fmean(
            value > 0.75 and kind != "equal" for value, kind in zip(similar, found, strict=True)
        ),
    }


def _sessions(by_user: Mapping[int, Sequence[Asked]], pairs: Sequence[tuple[Asked, Asked]]) -> dict[str, float]:
    lengths: list[int] = []
    moves: Counter[tuple[str, str]] = Counter()
    gaps = [after.arrival_s - before.arrival_s for before, after in pairs]
    for asked in by_user.values():
        length, last = 1, ""
        for before, after in pairwise(asked):
            kind = relation(before.prompt, after.prompt)
            if after.arrival_s - before.arrival_s > SESSION_GAP_S:
                lengths.append(length)
                length, last = 1, ""
                continue
            length += 1
            moves[(last, kind)] += bool(last)
            last = kind
        lengths.append(length)
    after_any = {kind: sum(n for (last, _), n in moves.items() if last == kind) for kind in ("equal", "near", "other")}
    return {
        "session length, mean": fmean(lengths),
        "session length, median": median(lengths),
        "share of sessions of one request": lengths.count(1) / len(lengths),
        "gap inside a session, median s": median([gap for gap in gaps if gap <= SESSION_GAP_S] or [0.0]),
        "share of pairs across sessions": fmean(gap > SESSION_GAP_S for gap in gaps),
        **{
            f"after {last}: {kind}": moves[(last, kind)] / max(after_any[last], 1)
            for last in ("equal", "near", "other")
            for kind in ("equal", "near", "other")
        },
    }


def _returns(trace: Sequence[Asked]) -> dict[str, float]:
    own: dict[int, set[str]] = defaultdict(set)
    owners: dict[str, int] = {}
    again = others = 0
    for row in trace:
        again += row.prompt in own[row.user]
        others += owners.get(row.prompt, row.user) != row.user
        own[row.user].add(row.prompt)
        owners.setdefault(row.prompt, row.user)
    return {
        "share of prompts the user has asked before": again / len(trace),
        "share of prompts another user asked before": others / len(trace),
        "share of prompts that are unique texts": len(owners) / len(trace),
    }


def _sizes(trace: Sequence[Asked], pairs: Sequence[tuple[Asked, Asked]], main: tuple[int, int]) -> dict[str, float]:
    classes = Counter(size_class(row.width, row.height, main) for row in trace)
    changed = [
        size_class(before.width, before.height, main) != size_class(after.width, after.height, main)
        for before, after in pairs
    ]
    return {f"size: {name}": classes[name] / len(trace) for name in SIZE_CLASSES} | {
        "pairs: size class changes": fmean(changed)
    }
