"""The messages between the programs of devices: activations, gradients and frozen values (pure).

What a step makes goes to the devices that need it. Both ends know the messages and their order beforehand, so no order
of sends and receives can deadlock: a step depends only on steps that the simulated timeline places earlier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from services.trainer.pipeline.runtime.parts import Training
from services.trainer.pipeline.runtime.program import (
    Device,
    FrozenStep,
    Layout,
    Message,
    PassStep,
    Program,
    Step,
    Value,
)
from services.trainer.pipeline.schedule.schedules import Action, Pass, needs, place_of


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
