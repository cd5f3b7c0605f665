"""What no cache can beat: an upper bound on the steps saved within a budget, with the future known.

A start of request i at step K from request j's state needs that state in the cache from the last time it was started
from (or from its making) until i. These stretches of one state never overlap, so over all starts they add up to no more
than the cache holds: budget × time, measured in requests. Any policy therefore picks, for every request, at most one
(j, K) such that the stretches fit into that product. The best such pick is a multiple-choice knapsack, and its dual

    λ · budget · requests + Σ_i max(0, max over (j, K) of (K − λ · bytes_j · stretch_ijK))

is not below it for any λ ≥ 0. The bound is the dual's smallest value. At λ = 0 it is the infinite cache, in which every
state of every earlier request is there. A stretch is taken since the last request that *could* have started from the
state, which is never longer than since the last one that did. (The idea is PFOO's: Berger, Beckmann and Harchol-Balter,
"Practical Bounds on Optimal Caching with Variable Object Sizes", 2018, for caches that answer exact keys.) A request
with more neighbours than its list holds may start for nothing at what its last listed similarity allows.

`tightened` does not let the stretches of one state be paid for one by one: who wants the last pays for all before it.
For any v ≥ 0, one number per request, what request i saves is at most v_i + (K − v_i)⁺ of the state it starts from, and
a state that is last started from by its n-th possible user is held for all stretches up to there, so that

    λ · budget · requests + Σ_i v_i + Σ_states max over n ≥ 0 of Σ_{m ≤ n} ((K − v_{i(m)})⁺ − λ · bytes · stretch_m)

is not below what any policy saves either: it is the dual of the same problem with each state's stretches in order. With
v_i = the first dual's own best option of i no bracket is above 0, so the second starts where the first ends, and a
subgradient descent over v and λ lowers it; wherever that stops is a bound.

Nothing above needs K to be the same for all who start from a state: where each request takes a T of its own, a state
after K of T steps saves a run of T' steps K' = K·T'/T where it fits that run, and shares are of all steps asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.replay.traces.neighbours import Neighbours
from services.retriever.selection import Ladder, largest_present
from shared.runtime.progress import Advance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ROUNDS = 60
"""Steps of the golden section."""
TIGHTENING_ROUNDS = 150
"""Steps along subgradients."""


@dataclass(frozen=True)
class Bound:
    """Steps saved as a share of all steps."""

    steps_saved: float
    infinite: float
    """With room for everything; the bound is never above it."""
    price: float
    """The dual's λ: the steps that a byte is worth for the time of one request."""


@dataclass(frozen=True)
class Options:
    """Every start that counts: `request` (0 … counted − 1, rising), steps saved, and bytes × requests held for it."""

    request: Ints
    k: Floats
    held: Floats
    free: Floats
    """(counted,): steps that a request may save for nothing."""
    chain: Ints
    """Which state, rising: of the options in order by state and then by time."""
    place: Ints
    """Where each of the above is in that order."""

    def value(self, price: float) -> float:
        """Σ_i of the best option at this price, 0 for none."""
        return float(self.best(price).sum())

    def best(self, price: float) -> Floats:
        """(counted,): each request's best option at this price."""
        best = self.free.copy()
        if len(self.request):
            starts = np.flatnonzero(np.r_[True, self.request[1:] != self.request[:-1]])
            own = np.maximum.reduceat(self.k - price * self.held, starts)
            who = self.request[starts]
            best[who] = np.maximum(best[who], own)
        return best

    def by_state(self) -> tuple[Ints, Floats, Floats]:
        """Requests, K and what is held, by state and then by time."""
        request, k, held = np.empty_like(self.request), np.empty_like(self.k), np.empty_like(self.held)
        request[self.place], k[self.place], held[self.place] = self.request, self.k, self.held
        return request, k, held


class States(Protocol):
    """Which states a policy may keep of a picture, and how they start others."""

    levels: int
    """Of a picture, at most."""

    def wished(self, requests: Ints, similarities: npt.NDArray[np.float32]) -> Ints:
        """`Ladder.wished` of each."""
        ...

    def starts(self, level: int, sources: Ints, requests: Ints) -> Ints:
        """After how many steps each request would start from its source's state at this level; 0: from none."""
        ...

    def at_most(self, requests: Ints, wished: Ints) -> Ints:
        """Of all states that there may be the largest start that is not above the wished one."""
        ...


class Alike:
    """Every request takes the same T; `ks`: those that a policy may keep."""

    def __init__(self, ladder: Ladder, ks: Sequence[int]) -> None:
        self._ladder, self._ks = ladder, ks
        self.levels = len(ks)

    def wished(self, requests: Ints, similarities: npt.NDArray[np.float32]) -> Ints:
        return np.fromiter(map(self._ladder.wished, similarities.tolist()), np.int64, len(similarities))

    def starts(self, level: int, sources: Ints, requests: Ints) -> Ints:
        return np.full(len(requests), self._ks[level], np.int64)

    def at_most(self, requests: Ints, wished: Ints) -> Ints:
        different, place = np.unique(wished, return_inverse=True)
        found = np.fromiter((largest_present(self._ks, one) for one in different.tolist()), np.int64, len(different))
        return found[place]


def options_of(neighbours: Neighbours, may_be: States, state_bytes: Ints, counted_from: int) -> Options:
    """What was held before `counted_from` costs nothing."""
    listed = neighbours.indices >= 0
    request, place = np.nonzero(listed)
    source = neighbours.indices[request, place].astype(np.int64)
    wished = may_be.wished(request, neighbours.similarities[request, place])
    none = np.zeros(0)  # of what nobody may keep
    rows, ks, held, chains, states = [none.astype(np.int64)], [none], [none], [none.astype(np.int64)], 0
    for level in range(may_be.levels):
        start = may_be.starts(level, source, request)
        able = (start > 0) & (wished >= start)
        who, state, saves = request[able], source[able], start[able]
        order = np.lexsort((who, state))  # each state's possible users in order of time
        who, state, saves = who[order], state[order], saves[order]
        before = np.where(np.r_[True, state[1:] != state[:-1]], state, np.r_[0, who[:-1]]) if len(who) else who
        stretch = who - np.maximum(before, counted_from)
        counts = who >= counted_from
        rows.append(who[counts] - counted_from)
        ks.append(saves[counts].astype(np.float64))
        held.append((stretch * state_bytes[state])[counts].astype(np.float64))
        chains.append(state[counts] + states)
        states += len(neighbours)
    last = np.maximum(listed.sum(axis=1) - 1, 0)
    everyone = np.arange(len(last))
    allowed = may_be.wished(everyone, neighbours.similarities[everyone, last])
    free = np.where(neighbours.cut, may_be.at_most(everyone, allowed), 0)[counted_from:].astype(np.float64)
    row, chain = np.concatenate(rows), np.concatenate(chains)
    order = np.argsort(row, kind="stable")
    return Options(row[order], np.concatenate(ks)[order], np.concatenate(held)[order], free, chain, order)


def bound(
    options: Options, max_bytes: int, asked: int, rounds: int = ROUNDS, advance: Advance = lambda count: None
) -> Bound:
    """The dual's smallest value, by golden section over λ (it is convex in λ); any λ it stops at gives a bound.

    asked: steps of all counted requests together. advance: counts each round.
    """
    counted = len(options.free)
    room = float(max_bytes) * counted
    infinite = options.value(0.0)

    def dual(price: float) -> float:
        return price * room + options.value(price)

    low, high = 0.0, infinite / room if room else 0.0  # beyond it the first term alone is above the infinite cache
    ratio = (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = dual(left), dual(right)
    smallest = min((infinite, 0.0), (at_left, left), (at_right, right))
    for _ in range(rounds):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = dual(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = dual(right)
        smallest = min(smallest, (at_left, left), (at_right, right))
        advance(1)
    return Bound(smallest[0] / asked, infinite / asked, smallest[1])


class _Chains:
    """The second dual: options by state, and what their best prefixes are worth."""

    def __init__(self, options: Options, room: float) -> None:
        self._request, self._k, self._held = options.by_state()
        self._free, self._room = options.free, room
        self._starts = np.flatnonzero(np.r_[True, options.chain[1:] != options.chain[:-1]])
        self._number = np.cumsum(np.r_[False, options.chain[1:] != options.chain[:-1]])
        self._position = np.arange(len(self._request))

    def at(self, v: Floats, price: float) -> tuple[float, Floats, float]:
        """The dual's value, and a subgradient of it in v and in the price."""
        gain = np.maximum(self._k - v[self._request], 0)
        total = np.cumsum(gain - price * self._held)
        before = np.r_[0.0, total[self._starts[1:] - 1]]
        total -= before[self._number]
        most = np.maximum.reduceat(total, self._starts)
        # the longest of the best prefixes; none where it is worth nothing
        ends = np.maximum.reduceat(np.where(total >= most[self._number], self._position, -1), self._starts)
        ends = np.where(most > 0, ends, -1)
        taken = self._position <= ends[self._number]
        started = np.bincount(self._request[taken & (gain > 0)], minlength=len(v))
        value = price * self._room + float(v.sum()) + float(most[most > 0].sum())
        by_v: Floats = 1.0 - started.astype(np.float64)
        return value, by_v, self._room - float(self._held[taken].sum())


def tightened(
    options: Options,
    first: Bound,
    max_bytes: int,
    asked: int,
    rounds: int = TIGHTENING_ROUNDS,
    advance: Advance = lambda count: None,
) -> Bound:
    """The second dual from where the first one ended, by subgradients with Polyak's step towards a little less than the
    best so far; any (v, λ) it comes by gives a bound."""
    counted = len(options.free)
    if not len(options.request) or not first.price:
        advance(rounds)
        return first
    room = float(max_bytes) * counted
    chains = _Chains(options, room)
    v, price = options.best(first.price), first.price
    scale = first.price
    """What a step in the price counts beside one in v: both change the dual about alike."""
    best, aim = (first.steps_saved * asked, price), 0.05
    for number in range(1, rounds + 1):
        advance(1)
        value, by_v, by_price = chains.at(v, price)
        if value < best[0]:
            best = (value, price)
        else:
            aim = max(aim * 0.9, 1e-4)
        by_v = np.where((v <= options.free) & (by_v > 0), 0.0, by_v)
        length = float(by_v @ by_v) + scale * by_price**2 / room
        if not length:
            advance(rounds - number)
            break
        step = (value - (1 - aim) * best[0]) / length
        v = np.maximum(v - step * by_v, options.free)
        price = max(price - step * scale * by_price / room, 0.0)
    return Bound(min(best[0] / asked, first.steps_saved), first.infinite, best[1])
