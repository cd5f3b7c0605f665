"""The program of each device for one iteration: the planner's table, with frozen layers in its bubbles (pure).

A device runs its steps in order. What a step makes goes to the devices that need it, as messages from device to
device; both ends know the messages and their order beforehand, so no order of sends and receives can deadlock: a step
depends only on steps that the simulated timeline places earlier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from services.trainer.pipeline.cuts.partition import Partition
from services.trainer.pipeline.filling.iteration import Filling
from services.trainer.pipeline.filling.one_bubble import Piece
from services.trainer.pipeline.plans import Iteration
from services.trainer.pipeline.runtime.parts import Training
from services.trainer.pipeline.schedule.bubbles import devices_of
from services.trainer.pipeline.schedule.schedules import Action, Pass, Schedule, needs, place_of


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
    """What it carries: (pass, pipeline, stage, next stage) or a tuple of values. Messages of one kind have equal shapes
    per row."""
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
    """Of other devices' passes, before each step."""
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


def linked(steps: Sequence[Sequence[Step]], layout: Layout, training: Training) -> Program:
    """Return the program of these steps with all messages between devices."""
    devices = tuple(Device(list(one), [[] for _ in one], [[] for _ in one]) for one in steps)
    _link_passes(devices, layout)
    _link_values(devices, layout, training)
    return Program(devices)


def _link_passes(devices: Sequence[Device], layout: Layout) -> None:
    """Add the messages of activations, gradients and self-conditioning between replicas that share rows."""
    done: dict[Action, list[tuple[int, int, range]]] = {}
    for device, program in enumerate(devices):
        for at, step in enumerate(program.steps):
            if isinstance(step, PassStep):
                done.setdefault(step.action, []).append((device, at, step.rows))
    twice = any(action.kind is Pass.SELF_CONDITIONING for action in done)
    for action in done:
        for need in needs(action, layout.stages, twice):
            if place_of(need, layout.stages) == place_of(action, layout.stages):
                continue
            kind = (need.kind, need.pipeline, need.stage, action.stage)
            for (source, before, sent), (target, after, wanted) in itertools.product(done.get(need, ()), done[action]):
                if rows := _common(sent, wanted):
                    message = Message(source, target, kind, rows, before)
                    devices[source].sends[before].append(message)
                    devices[target].needs[after].append(message)


def _link_values(devices: Sequence[Device], layout: Layout, training: Training) -> None:
    """Add the messages of frozen values: to later layers, other components, and the stages of the next iteration."""
    if not any(isinstance(step, FrozenStep) for program in devices for step in program.steps):
        return
    wanted: list[dict[Value, set[int]]] = [{} for _ in devices]
    for device, program in enumerate(devices):
        for at, step in enumerate(program.steps):
            if isinstance(step, FrozenStep):
                for value in read_values(training, step.component, step.layer):
                    wanted[device].setdefault(value, set()).update(step.rows)
                    program.last_use[value] = at
            else:
                continue
            for name in training.frozen[step.component].chain.layers[step.layer].makes:
                program.last_use[Value(step.component, step.layer, name)] = at  # later readers here replace it
        for value in stage_values(training, layout, device):
            wanted[device].setdefault(value, set()).update(layout.all_rows(device))
            program.last_use.pop(value, None)
    for source, program in enumerate(devices):
        for at, step in enumerate(program.steps):
            if not isinstance(step, FrozenStep):
                continue
            made = [
                Value(step.component, step.layer, name)
                for name in training.frozen[step.component].chain.layers[step.layer].makes
            ]
            for target in range(len(devices)):
                if target == source:
                    continue
                sent: dict[tuple[range, ...], list[Value]] = {}
                for value in made:
                    if rows := runs_of(wanted[target].get(value, set()) & set(step.rows)):
                        sent.setdefault(rows, []).append(value)
                for rows, values in sent.items():
                    for one in rows:
                        message = Message(source, target, tuple(values), one, at, ahead=True)
                        program.sends[at].append(message)
                        for value in values:
                            devices[target].values.setdefault(value, []).append(message)


def read_values(training: Training, component: int, layer: int) -> list[Value]:
    """Return the frozen values that a frozen layer reads: of earlier layers, or of the components that feed it."""
    part = training.frozen[component]
    found: dict[Value, None] = {}
    for name in part.chain.layers[layer].reads:
        maker = part.chain.maker(name, layer)
        if maker is not None:
            found[Value(component, maker, name)] = None
        else:
            found.update((Value(*training.maker(one), one), None) for one in part.prepares)
    return list(found)


def stage_values(training: Training, layout: Layout, device: int) -> list[Value]:
    """Return the frozen outputs that the stages of a device read."""
    found: dict[Value, None] = {}
    for pipeline, stage in layout.stages_of(device):
        part = training.backbones[pipeline]
        read = part.chain.read_by(layout.cut.stages[pipeline][stage])
        names = [*part.prepares, *(name for name in read if name in training.encoded)]
        found.update((Value(*training.maker(name), name), None) for name in names)
    return list(found)


def runs_of(rows: Iterable[int]) -> tuple[range, ...]:
    """Return rows as ranges without gaps."""
    found: list[range] = []
    for row in sorted(rows):
        if found and found[-1].stop == row:
            found[-1] = range(found[-1].start, row + 1)
        else:
            found.append(range(row, row + 1))
    return tuple(found)


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))
