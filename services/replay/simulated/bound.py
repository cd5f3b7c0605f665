"""Compute an upper bound on the steps that any cache saves within a budget, with the future known.

First dual. A start of request i at step K from request j's state needs that state in the cache for a stretch of time:
from the state's last use (or its making) until i. The stretches of one state never overlap. Over all starts they add
up to at most budget × time, with time measured in requests. A policy therefore picks at most one (j, K) for every
request, such that the stretches fit into that product. The best pick is a multiple-choice knapsack. For any λ ≥ 0 its
dual is an upper bound:

    λ · budget · requests + Σ_i max(0, max over (j, K) of (K − λ · bytes_j · stretch_ijK))

`bound` returns the dual's smallest value. At λ = 0 the dual is the infinite cache, which holds every state of every
earlier request. A stretch begins at the last request that *could* have started from the state. That is never earlier
than the last request that did. A request with more neighbours than its list holds may start at no cost: at the step
that its last listed similarity allows. The idea is PFOO's, for caches with exact keys: Berger, Beckmann and
Harchol-Balter, "Practical Bounds on Optimal Caching with Variable Object Sizes", 2018.

Second dual. `tightened` charges a user of a state for all earlier stretches of that state too. For any v ≥ 0, one
number per request, request i saves at most v_i + (K − v_i)⁺ of the state it starts from. A state whose last user is its
n-th possible user is held for all n stretches. The dual of the problem with each state's stretches in order is again an
upper bound:

    λ · budget · requests + Σ_i v_i + Σ_states max over n ≥ 0 of Σ_{m ≤ n} ((K − v_{i(m)})⁺ − λ · bytes · stretch_m)

With v_i = the first dual's best option of i, no bracket is above 0, so the second dual starts where the first ends. A
subgradient descent over v and λ lowers the value; every point of the descent is a bound.

Neither dual needs one K for all users of a state. Where each request has its own T, a state after K of T steps that
fits a run of T' steps saves K' = K·T'/T of them. Shares are then of all steps requested.
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
"""Rounds of the golden section."""
TIGHTENING_ROUNDS = 150
"""Rounds of the subgradient descent."""


@dataclass(frozen=True)
class Bound:
    """An upper bound on the steps saved, as a share of all steps."""

    steps_saved: float
    infinite: float
    """Steps saved with unlimited room; the bound is never above this share."""
    price: float
    """The dual's λ: steps that one byte saves in the time of one request."""


@dataclass(frozen=True)
class Options:
    """Starts of the counted requests: request (0 … counted − 1, ascending), steps saved, bytes × requests held."""

    request: Ints
    k: Floats
    held: Floats
    free: Floats
    """(counted,): steps that each request may save without a held state."""
    chain: Ints
    """State of each option, ascending; the options are in order of state and then time."""
    place: Ints
    """Position of each option of the fields above in that order."""

    def value(self, price: float) -> float:
        """Return Σ_i of the best option at this price; a request without options counts 0."""
        return float(self.best(price).sum())

    def best(self, price: float) -> Floats:
        """Return each request's best option at this price, shape (counted,)."""
        best = self.free.copy()
        if len(self.request):
            starts = np.flatnonzero(np.r_[True, self.request[1:] != self.request[:-1]])
            own = np.maximum.reduceat(self.k - price * self.held, starts)
            who = self.request[starts]
            best[who] = np.maximum(best[who], own)
        return best

    def by_state(self) -> tuple[Ints, Floats, Floats]:
        """Return requests, K, and bytes × requests held, in order of state and then time."""
        request, k, held = np.empty_like(self.request), np.empty_like(self.k), np.empty_like(self.held)
        request[self.place], k[self.place], held[self.place] = self.request, self.k, self.held
        return request, k, held


class States(Protocol):
    """The states that a policy may keep of an image, and the starts that they allow."""

    levels: int
    """Most states that are kept of one image."""

    def wished(self, requests: Ints, similarities: npt.NDArray[np.float32]) -> Ints:
        """Return `Ladder.wished` of each similarity."""
        ...

    def starts(self, level: int, sources: Ints, requests: Ints) -> Ints:
        """Return the step at which each request would start from its source's state at this level; 0: none fits."""
        ...

    def at_most(self, requests: Ints, wished: Ints) -> Ints:
        """Return the largest start of any possible state that is not above the allowed step."""
        ...


class Alike:
    """States if every request takes the same T; `ks` are the K that a policy may keep."""

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
    """Return the possible starts of all requests from `counted_from` on; time before `counted_from` costs nothing."""
    listed = neighbours.indices >= 0
    request, place = np.nonzero(listed)
    source = neighbours.indices[request, place].astype(np.int64)
    wished = may_be.wished(request, neighbours.similarities[request, place])
    none = np.zeros(0)  # the start of each list, for a policy that may keep no state
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
    """Minimize the first dual by golden section over λ; the dual is convex in λ, and every λ gives a bound.

    `asked` is the sum of the steps of all counted requests; `advance` is called after each round.
    """
    counted = len(options.free)
    room = float(max_bytes) * counted
    infinite = options.value(0.0)

    def dual(price: float) -> float:
        return price * room + options.value(price)

    low, high = 0.0, infinite / room if room else 0.0  # above `high` the first term alone exceeds the infinite cache
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
    """The second dual: the options of each state, and the value of their best prefixes."""

    def __init__(self, options: Options, room: float) -> None:
        self._request, self._k, self._held = options.by_state()
        self._free, self._room = options.free, room
        self._starts = np.flatnonzero(np.r_[True, options.chain[1:] != options.chain[:-1]])
        self._number = np.cumsum(np.r_[False, options.chain[1:] != options.chain[:-1]])
        self._position = np.arange(len(self._request))

    def at(self, v: Floats, price: float) -> tuple[float, Floats, float]:
        """Return the dual's value, and its subgradients in v and in the price."""
        gain = np.maximum(self._k - v[self._request], 0)
        total = np.cumsum(gain - price * self._held)
        before = np.r_[0.0, total[self._starts[1:] - 1]]
        total -= before[self._number]
        most = np.maximum.reduceat(total, self._starts)
        # the longest of the best prefixes; −1 if no prefix has a positive value
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
    """Lower the second dual from the first dual's end, by subgradients.

    Polyak's step aims slightly below the best value so far. Every visited (v, λ) gives a bound.
    """
    counted = len(options.free)
    if not len(options.request) or not first.price:
        advance(rounds)
        return first
    room = float(max_bytes) * counted
    chains = _Chains(options, room)
    v, price = options.best(first.price), first.price
    scale = first.price
    """Ratio of the step sizes in the price and in v. With this ratio, both steps change the dual about equally."""
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
