"""The program of each device for one iteration: the planner's table, with frozen layers in its bubbles (pure)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from services.trainer.pipeline.cuts.partition import Partition
from services.trainer.pipeline.filling.iteration import Filling
from services.trainer.pipeline.filling.one_bubble import Piece
from services.trainer.pipeline.plans import Iteration
from services.trainer.pipeline.schedule.bubbles import devices_of
from services.trainer.pipeline.schedule.schedules import Action, Pass, Schedule


@dataclass(frozen=True)
class PassStep:
    """One pass of a micro-batch, on the rows of one replica."""

    action: Action
    rows: range


@dataclass(frozen=True)
class FrozenStep:
    """One frozen layer on some rows of the next batch."""

    component: int
    layer: int
    rows: range


Step = PassStep | FrozenStep


@dataclass(frozen=True)
class Value:
    """A tensor that a frozen layer makes."""

    component: int
    layer: int
    name: str


@dataclass(frozen=True)
class Message:
    """Named tensors of some rows that one device sends to another one after a step."""

    source: int
    target: int
    kind: Hashable
    """Contents: (pass, pipeline, stage, next stage) or a tuple of values. Messages of one kind have equal
    shapes per row."""
    rows: range
    step: int
    """Step of the source after which it is sent."""
    ahead: bool = False
    """Whether it belongs to the next batch."""


@dataclass
class Device:
    """The program of one device."""

    steps: list[Step] = field(default_factory=list)
    sends: list[list[Message]] = field(default_factory=list)
    """After each step."""
    needs: list[list[Message]] = field(default_factory=list)
    """Messages of other devices' passes, before each step."""
    values: dict[Value, list[Message]] = field(default_factory=dict)
    """Frozen values that arrive here."""
    last_use: dict[Value, int] = field(default_factory=dict)
    """Step after which a frozen value is not read any more; those that the next iteration reads are not in here."""


@dataclass(frozen=True)
class Program:
    """One iteration of all devices of a pipeline group."""

    devices: tuple[Device, ...]

    def between(self, source: int, target: int) -> list[Message]:
        """Return the messages from one device to another, in the order in which they are sent."""
        return [one for sent in self.devices[source].sends for one in sent if one.target == target]


@dataclass(frozen=True)
class Layout:
    """Where stages are and which rows their replicas run; all devices of one group."""

    cut: Partition
    batch: int
    micro_batches: int

    @property
    def places(self) -> list[range]:
        """Return for each place in the chain its devices."""
        return devices_of(self.cut.replicas)

    @property
    def devices(self) -> int:
        return sum(self.cut.replicas)

    @property
    def stages(self) -> int:
        return len(self.cut.replicas)

    def place(self, device: int) -> int:
        return next(place for place, devices in enumerate(self.places) if device in devices)

    def stages_of(self, device: int) -> list[tuple[int, int]]:
        """Return the (pipeline, stage) pairs of a device."""
        place = self.place(device)
        return [
            (pipeline, place if pipeline == 0 else self.stages - 1 - place) for pipeline in range(len(self.cut.stages))
        ]

    def rows(self, place: int, device: int, micro_batch: int) -> range:
        """Return the rows of a micro-batch that a device runs."""
        whole = share(range(self.batch), micro_batch, self.micro_batches)
        return share(whole, self.places[place].index(device), self.cut.replicas[place])

    def all_rows(self, device: int) -> set[int]:
        """Return all rows that a device runs in an iteration."""
        place = self.place(device)
        return {row for number in range(self.micro_batches) for row in self.rows(place, device, number)}


def share(rows: range, number: int, parts: int) -> range:
    """Return one of several parts of rows; their sizes differ by one at most."""
    count = len(rows)
    return rows[count * number // parts : count * (number + 1) // parts]


def pass_program(layout: Layout, schedule: Schedule, kinds: Iterable[Pass] = tuple(Pass)) -> list[list[Step]]:
    """Return for each device the steps of a table without frozen layers: passes of these kinds that have rows."""
    return [
        [
            PassStep(action, rows)
            for action in schedule.places[place]
            if action.kind in kinds and (rows := layout.rows(place, device, action.micro_batch))
        ]
        for place, devices in enumerate(layout.places)
        for device in devices
    ]


def filled_program(layout: Layout, iteration: Iteration) -> list[list[Step]]:
    """Return for each device the passes of an iteration with the pieces of its filling in their bubbles, and after the
    passes what did not fit. The planner's times decide the order only."""
    filling = iteration.filling
    if filling is None:
        return pass_program(layout, iteration.schedule)
    timed: list[list[tuple[float, Step]]] = [
        [
            (played.start_s, PassStep(played.action, layout.rows(place, device, played.action.micro_batch)))
            for played in iteration.timeline.places[place]
        ]
        for place, devices in enumerate(layout.places)
        for device in devices
    ]
    for start_s, device, step in _frozen_steps(filling, layout.devices):
        timed[device].append((start_s, step))
    return [[step for _, step in sorted(steps, key=lambda one: one[0])] for steps in timed]


def frozen_program(pieces: Sequence[Piece], devices: int) -> list[list[Step]]:
    """Return the frozen part alone, data-parallel on all devices: before the first iteration, or without filling."""
    found: list[list[Step]] = [[] for _ in range(devices)]
    for _, device, step in _frozen_steps(Filling((), tuple(pieces), 0.0), devices):
        found[device].append(step)
    return found


def _frozen_steps(filling: Filling, devices: int) -> Iterable[tuple[float, int, FrozenStep]]:
    """Yield (start in seconds, device, step); pieces of one layer take the rows one after the other (Fig. 12)."""
    taken: dict[tuple[int, int], int] = {}
    runs = [(one.bubble.start_s, one.bubble.devices, one.pieces) for one in filling.bubbles]
    runs.append((math.inf, tuple(range(devices)), filling.rest))
    for start_s, on, pieces in runs:
        for piece in pieces:
            key = (piece.component, piece.layer)
            first = taken.get(key, 0)
            taken[key] = first + piece.samples
            for number, device in enumerate(on):
                low = first + number * piece.local_batch
                rows = range(low, min(low + piece.local_batch, first + piece.samples))
                if rows:
                    yield start_s, device, FrozenStep(piece.component, piece.layer, rows)
