"""Fill one bubble with frozen layers: Algorithms 1 and 2 of DiffusionPipe (§5).

Readings of the text. B in the algorithms is the batch of the pipeline group. A batch of B samples on d devices takes
the time of the largest part, ⌈B/d⌉. Candidates without a partial-batch layer count too; otherwise a bubble that fits
all of a component would stay empty. Components whose layers have all run are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from services.trainer.pipeline.costs.profile import FrozenComponent

LOCAL_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96)
"""Samples per device of a partial-batch layer: not too few, and sizes for which kernels are fast (§5)."""
CANDIDATES = 4096
"""Full-batch candidates that the recursion of Algorithm 2 may keep; with more it thins them out."""
EXACT_S = 1e-12
"""Sums of times within this difference are equal."""


@dataclass(frozen=True)
class Piece:
    """One frozen layer on some or all samples of the batch; `layer` counts from 0 in its component."""

    component: int
    layer: int
    samples: int
    local_batch: int
    """Samples on each device; the last devices may have fewer."""
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How far the frozen part is."""

    layers: tuple[int, ...]
    """For each component its first layer that has not run on all samples."""
    left: tuple[int, ...]
    """Samples on which that layer has not run."""


@dataclass(frozen=True)
class Option:
    """One way to fill a bubble."""

    pieces: tuple[Piece, ...]
    seconds: float
    after: Progress


@dataclass
class FrozenWork:
    """The frozen part for one batch on one pipeline group."""

    components: Sequence[FrozenComponent]
    batch: int
    devices: int
    """Devices of the group: on all of them runs what fits into no bubble."""
    local_sizes: Sequence[int] = LOCAL_SIZES
    """Local sizes of partial-batch layers; empty: no such layers."""
    candidates: int = CANDIDATES
    _times: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _rest: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, component in enumerate(self.components):
            sums = [0.0]
            for layer in reversed(range(len(component.layers))):
                sums.append(sums[-1] + self.seconds(number, layer, math.ceil(self.batch / self.devices)))
            self._rest.append(sums[::-1])

    def start(self) -> Progress:
        """Return the state in which nothing has run."""
        return Progress((0,) * len(self.components), (self.batch,) * len(self.components))

    def seconds(self, component: int, layer: int, local_batch: int) -> float:
        key = (component, layer, local_batch)
        if key not in self._times:
            self._times[key] = self.components[component].forward_s(layer, local_batch)
        return self._times[key]

    def ready(self, progress: Progress, within: bool = False) -> list[int]:
        """Return the components that have layers left and whose inputs are complete, in topological order.

        within: also those that wait for such components only, which may be complete before the bubble ends.
        """
        done = {one.name for one, at in zip(self.components, progress.layers, strict=True) if at == len(one.layers)}
        found, known = [], set(done)
        for number, one in enumerate(self.components):
            if one.name not in done and known.issuperset(one.after):
                found.append(number)
                if within:
                    known.add(one.name)
        return found

    def rest_s(self, progress: Progress) -> float:
        """Return the time of everything left on all devices of the group, after the pipeline."""
        total = 0.0
        for number, (at, left) in enumerate(zip(progress.layers, progress.left, strict=True)):
            if at < len(self.components[number].layers):
                total += self.seconds(number, at, math.ceil(left / self.devices)) + self._rest[number][at + 1]
        return total

    def rest(self, progress: Progress) -> tuple[Piece, ...]:
        """Return the pieces that run after the pipeline, in topological order."""
        pieces: list[Piece] = []
        for number, (at, left) in enumerate(zip(progress.layers, progress.left, strict=True)):
            count = len(self.components[number].layers) - at
            pieces += self._pieces(number, at, count, left, self.devices)
        return tuple(pieces)

    def _pieces(self, component: int, first: int, count: int, left: int, devices: int) -> list[Piece]:
        """Return `count` layers of a component on the whole batch, the first one on the samples that are left."""
        pieces = []
        for layer in range(first, first + count):
            samples = left if layer == first else self.batch
            local = math.ceil(samples / devices)
            pieces.append(Piece(component, layer, samples, local, self.seconds(component, layer, local)))
        return pieces

    def options(self, progress: Progress, bubble_s: float, devices: int, *, within: bool = False) -> Iterator[Option]:
        """Yield the ways to fill a bubble (Algorithm 1, lines 1–6): each candidate alone, then with a partial layer.

        within: a component may begin in the bubble in which its inputs become complete. The paper takes the components
        that are ready when the bubble begins.
        """
        ready = self.ready(progress, within)
        lists = [self._fitting(one, progress, bubble_s, devices) for one in ready]
        waits = self._waits(ready, progress)
        for counts, used in full_batch_candidates([_sums(one) for one in lists], bubble_s, self.candidates, waits):
            pieces = tuple(piece for one, count in zip(lists, counts, strict=True) for piece in one[:count])
            layers, left = list(progress.layers), list(progress.left)
            for number, count in zip(ready, counts, strict=True):
                if count:
                    layers[number] += count
                    left[number] = self.batch
            yield Option(pieces, used, Progress(tuple(layers), tuple(left)))
            for number, needs in zip(ready, waits, strict=True):
                whole = layers[number] == len(self.components[number].layers)
                if whole or any(counts[at] < missing for at, missing in needs):
                    continue
                partial = self._partial(number, layers[number], left[number], bubble_s - used, devices)
                if partial is not None:
                    remaining = list(left)
                    remaining[number] -= partial.samples
                    after = Progress(tuple(layers), tuple(remaining))
                    yield Option((*pieces, partial), used + partial.seconds, after)

    def _waits(self, ready: Sequence[int], progress: Progress) -> list[list[tuple[int, int]]]:
        """Return for each component in `ready` the others it waits for: (place in `ready`, layers that are missing)."""
        place = {self.components[number].name: at for at, number in enumerate(ready)}
        return [
            [
                (place[name], len(self.components[ready[place[name]]].layers) - progress.layers[ready[place[name]]])
                for name in self.components[number].after
                if name in place
            ]
            for number in ready
        ]

    def _fitting(self, component: int, progress: Progress, bubble_s: float, devices: int) -> list[Piece]:
        """Return the next layers of a component that fit into a bubble one after the other (Algorithm 2, 2–5)."""
        first, used, found = progress.layers[component], 0.0, []
        for piece in self._pieces(
            component, first, len(self.components[component].layers) - first, progress.left[component], devices
        ):
            used += piece.seconds
            if used > bubble_s + EXACT_S:
                break
            found.append(piece)
        return found

    def _partial(self, component: int, layer: int, left: int, seconds: float, devices: int) -> Piece | None:
        """Return the layer on the most samples that fit (getValidNumSamples); fewer than are left."""
        for local in sorted(self.local_sizes, reverse=True):
            taken = self.seconds(component, layer, local)
            if local * devices < left and taken <= seconds + EXACT_S:
                return Piece(component, layer, local * devices, local, taken)
        return None


def best_option(options: Iterable[Option]) -> Option | None:
    """Return the option with the longest execution time (Algorithm 1, line 7), the first one of equals."""
    return max(options, key=lambda one: one.seconds, default=None)


def full_batch_candidates(
    sums: Sequence[Sequence[float]],
    bubble_s: float,
    limit: int = CANDIDATES,
    waits: Sequence[Sequence[tuple[int, int]]] = (),
) -> list[tuple[tuple[int, ...], float]]:
    """Return numbers of layers for each component that fit together, and their time (Algorithm 2).

    sums: for each component the times of its first 0, 1, 2 … layers. The last component takes as many layers as fit.
    waits: for each component (other component, layers of it that must be in the candidate before this one begins).
    Beyond the paper, where the recursion explodes: of more than `limit` candidates for the first components it keeps
    `limit` with evenly spaced times, the longest among them.
    """
    found: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for number, times in enumerate(sums):
        extended = []
        for counts, used in found:
            most = max(count for count, time in enumerate(times) if used + time <= bubble_s + EXACT_S)
            if waits and any(counts[at] < missing for at, missing in waits[number]):
                most = 0
            least = most if number == len(sums) - 1 else 0
            extended += [((*counts, count), used + times[count]) for count in range(most, least - 1, -1)]
        found = _thinned(extended, limit)
    return found


def _thinned(candidates: list[tuple[tuple[int, ...], float]], limit: int) -> list[tuple[tuple[int, ...], float]]:
    if len(candidates) <= limit:
        return candidates
    ordered = sorted(candidates, key=lambda one: -one[1])
    return [ordered[at * len(ordered) // limit] for at in range(limit)]


def _sums(pieces: Sequence[Piece]) -> list[float]:
    sums = [0.0]
    for piece in pieces:
        sums.append(sums[-1] + piece.seconds)
    return sums
