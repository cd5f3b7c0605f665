"""One device in one iteration: its program, step by step.

Each step waits for what it reads, runs, and sends what it makes; sends never wait. Gradients of a stage are summed over
its replicas as soon as its last backward pass is done, while later passes and frozen layers run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from services.trainer.pipeline.runtime.frozen import Encoding
from services.trainer.pipeline.runtime.gradients import GradientSum
from services.trainer.pipeline.runtime.parcels import joined
from services.trainer.pipeline.runtime.parts import Fed, Training
from services.trainer.pipeline.runtime.program import Device, FrozenStep, PassStep
from services.trainer.pipeline.runtime.splitting.chain import State
from services.trainer.pipeline.runtime.stages import Stage
from services.trainer.pipeline.runtime.transport import Transport
from services.trainer.pipeline.schedule.schedules import Pass


@dataclass(frozen=True)
class Held:
    """Parts of a device that stay for all iterations; stages and sums by (pipeline, stage)."""

    training: Training
    stages: Mapping[tuple[int, int], Stage]
    transport: Transport
    sums: Mapping[tuple[int, int], GradientSum]


class DeviceRun:
    """The steps of one program on this device."""

    def __init__(
        self,
        held: Held,
        program: Device,
        encoding: Encoding | None,
        ahead: Encoding | None,
        *,
        loss_scale: float,
        train: bool,
    ) -> None:
        """Prepare a run; `encoding` has the frozen outputs of its batch, `ahead` gets those of the next one."""
        self._held, self._program, self._encoding, self._ahead = held, program, encoding, ahead
        self._loss_scale, self._train = loss_scale, train
        self._fed: dict[tuple[int, int, range], Fed] = {}
        self._estimates: dict[tuple[int, int], torch.Tensor] = {}
        actions = [step.action for step in program.steps if isinstance(step, PassStep)]
        self._left = Counter((one.pipeline, one.stage) for one in actions if one.kind is Pass.BACKWARD)

    def all_steps(self) -> None:
        """Run every step, in order."""
        for at, step in enumerate(self._program.steps):
            made = self._frozen(at, step) if isinstance(step, FrozenStep) else self._pass(at, step)
            for message in self._program.sends[at]:
                sent = made
                if isinstance(step, FrozenStep):
                    assert isinstance(message.kind, tuple), "the values that it carries"
                    sent = {value.name: made[value.name] for value in message.kind}
                self._held.transport.send(message, sent, step.rows.start)

    def _frozen(self, at: int, step: FrozenStep) -> State:
        assert self._ahead is not None, "a program with frozen steps has a batch to encode"
        return self._ahead.run(at, step, self._held.transport.receive)

    def _pass(self, at: int, step: PassStep) -> State:
        action = step.action
        messages = sorted(self._program.needs[at], key=lambda one: one.rows.start)
        received = joined([self._held.transport.receive(one) for one in messages]) if messages else {}
        stage = self._held.stages[action.pipeline, action.stage]
        if action.kind is Pass.BACKWARD:
            made = stage.backward(action.micro_batch, received, self._loss_scale)
            self._left[action.pipeline, action.stage] -= 1
            if not self._left[action.pipeline, action.stage]:
                self._held.sums[action.pipeline, action.stage].begin()
            return made
        fed = self._inputs(step)
        if action.kind is Pass.SELF_CONDITIONING:
            made = stage.condition(received, fed)
            if stage.first and stage.last:
                self._estimates[action.pipeline, action.micro_batch] = made["estimate"]
            return made
        estimate = self._estimates.pop((action.pipeline, action.micro_batch), None)
        if stage.first:
            estimate, received = received.get("estimate", estimate), {}
        made = stage.forward(action.micro_batch, received, fed, estimate, train=self._train)
        self._fed.pop((action.pipeline, action.stage, step.rows), None)
        return made

    def _inputs(self, step: PassStep) -> Fed:
        """Return the inputs of a stage for a micro-batch; both forward passes read the same."""
        key = (step.action.pipeline, step.action.stage, step.rows)
        if key not in self._fed:
            assert self._encoding is not None, "passes run on an encoded batch"
            training, stage = self._held.training, self._held.stages[key[0], key[1]]
            read = [name for name in stage.part.chain.read_by(stage.layers) if name in training.encoded]
            names = sorted({*stage.part.prepares, *read})
            self._fed[key] = stage.part.feed(*self._encoding.encoded(names, step.rows))
        return self._fed[key]
