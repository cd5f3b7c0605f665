"""Frozen layers of one batch on this device: what they made, and which rows of it are here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from services.trainer.pipeline.runtime.linking import runs_of
from services.trainer.pipeline.runtime.parts import Rows, Training
from services.trainer.pipeline.runtime.program import Device, FrozenStep, Message, Value
from services.trainer.pipeline.runtime.splitting.chain import State

Receive = Callable[[Message], State]


class Encoding:
    """The frozen part of one batch, as far as this device runs it or needs it."""

    def __init__(self, training: Training, program: Device, batch: Rows, first_row: int) -> None:
        """Begin a batch. Rows of the program count from `first_row` of the batch, where the group's rows begin."""
        self.batch, self._training, self._program, self._first_row = batch, training, program, first_row
        self._parts: dict[Value, list[tuple[range, torch.Tensor]]] = {}
        self._fed: dict[tuple[int, range], State] = {}

    def run(self, at: int, step: FrozenStep, receive: Receive) -> State:
        """Run one frozen layer, step `at` of the program; return what it makes."""
        part = self._training.frozen[step.component]
        layer, state = part.chain.layers[step.layer], {}
        for name in layer.reads:
            maker = part.chain.maker(name, step.layer)
            if maker is None:
                state[name] = self._inputs(step, receive)[name]
            else:
                state[name] = self.rows(Value(step.component, maker, name), step.rows, receive)
        with torch.no_grad():
            made = dict(layer.run(state))
        for name, tensor in made.items():
            self._parts.setdefault(Value(step.component, step.layer, name), []).append((step.rows, tensor))
        self._release(at, step)
        return made

    def _inputs(self, step: FrozenStep, receive: Receive) -> State:
        key = (step.component, step.rows)
        if key not in self._fed:
            part = self._training.frozen[step.component]
            values = {name: Value(*self._training.maker(name), name) for name in part.prepares}
            read = {name: self.rows(value, step.rows, receive) for name, value in values.items()}
            self._fed[key] = part.feed(self._of_batch(step.rows), read)
        return self._fed[key]

    def _of_batch(self, rows: range) -> Any:
        return self.batch.part(self._first_row + rows.start, self._first_row + rows.stop)

    def _release(self, at: int, step: FrozenStep) -> None:
        """Drop values that no later step reads."""
        for value in [one for one in self._parts if self._program.last_use.get(one) == at]:
            del self._parts[value]
        part = self._training.frozen[step.component]
        for layer in part.chain.layers[step.layer + 1 :]:
            if any(name in part.chain.inputs for name in layer.reads):
                return
        self._fed.pop((step.component, step.rows), None)

    def rows(self, value: Value, rows: range, receive: Receive) -> torch.Tensor:
        """Return some rows of a value; wait for those that other devices send."""
        here = self._parts.setdefault(value, [])
        missing = set(rows).difference(*(one for one, _ in here))
        for message in self._program.values.get(value, ()) if missing else ():
            if missing.intersection(message.rows) and not self._has(value, message.rows):
                state = receive(message)
                assert isinstance(message.kind, tuple)
                for one in message.kind:
                    self._parts.setdefault(one, []).append((message.rows, state[one.name]))
        return _gathered(self._parts[value], rows)

    def _has(self, value: Value, rows: range) -> bool:
        return any(one == rows for one, _ in self._parts[value])

    def complete(self, values: Iterable[Value], rows: Iterable[int], receive: Receive) -> None:
        """Wait for all rows that the stages of this device read, and drop everything else."""
        kept = {}
        for value in values:
            kept[value] = [(one, self.rows(value, one, receive)) for one in runs_of(rows)]
        self._parts = kept
        self._fed.clear()

    def encoded(self, names: Iterable[str], rows: range) -> tuple[Any, State]:
        """Return some rows of the batch, and of the frozen outputs that a stage reads."""
        values = {name: Value(*self._training.maker(name), name) for name in names}
        return self._of_batch(rows), {name: _gathered(self._parts[one], rows) for name, one in values.items()}


def _gathered(parts: list[tuple[range, torch.Tensor]], rows: range) -> torch.Tensor:
    """Return rows from parts that hold them, in order."""
    found, at = [], rows.start
    while at < rows.stop:
        held, tensor = next((one, tensor) for one, tensor in parts if at in one)
        stop = min(held.stop, rows.stop)
        found.append(tensor[at - held.start : stop - held.start])
        at = stop
    return found[0] if len(found) == 1 else torch.cat(found)
