"""Play a plan over torch.distributed: one rank of it, for a training loop that owns optimizer and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.filling.one_bubble import FrozenWork
from services.trainer.pipeline.plans import Plan
from services.trainer.pipeline.runtime.device_run import DeviceRun, Held
from services.trainer.pipeline.runtime.frozen import Encoding
from services.trainer.pipeline.runtime.gradients import GradientSum, earlier_gradients
from services.trainer.pipeline.runtime.linking import linked, stage_values
from services.trainer.pipeline.runtime.parts import Rows, Training
from services.trainer.pipeline.runtime.program import (
    Layout,
    Program,
    filled_program,
    frozen_program,
    pass_program,
    share,
)
from services.trainer.pipeline.runtime.splitting.chain import trainable
from services.trainer.pipeline.runtime.stages import Stage
from services.trainer.pipeline.runtime.transport import Transport
from services.trainer.pipeline.schedule.schedules import Pass
from shared.domain.errors import InvalidRequestError


class PipelineExecutor:
    """One rank of a plan. The optimizer is not part of it: a step leaves gradients in `parameters()`."""

    def __init__(
        self,
        training: Training,
        plan: Plan,
        profile: Profile,
        *,
        device: torch.device,
        autocast: torch.autocast | None = None,
        recompute: bool = False,
        release: bool = True,
        timeout: timedelta | None = None,
    ) -> None:
        """Prepare this rank; all ranks of the default process group do so together.

        autocast surrounds the backbone's layers, not the frozen part. recompute: keep the inputs of layers only, and
        run their forward passes again in the backward pass (gradient checkpointing). timeout: of every message.
        release: move the parameters of stages that are on other ranks to the `meta` device. A rank that generates
        samples or writes the model keeps them, and calls `gather` before. Raises InvalidRequestError if the plan is for
        another number of ranks or other parts.
        """
        check_plan(training, plan, profile, dist.get_world_size())
        self._training, self._plan = training, plan
        self._group, self._own = divmod(dist.get_rank(), plan.group)
        self._layout = Layout(plan.cut, plan.batch, plan.micro_batches)
        self._stages = {
            (pipeline, stage): Stage(
                training.backbones[pipeline], plan.cut.stages[pipeline][stage], autocast=autocast, recompute=recompute
            )
            for pipeline, stage in self._layout.stages_of(self._own)
        }
        if release:
            self._release()
        self._sums = self._gradient_groups(timeout)
        for group in range(plan.groups):  # every rank makes every process group
            ranks = range(group * plan.group, (group + 1) * plan.group)
            made = Transport(ranks, self._own, device, member=group == self._group, timeout=timeout)
            if group == self._group:
                self._transport = made
        self._held = Held(training, self._stages, self._transport, self._sums)
        self._device, self._profile = device, profile
        self._iterations = {one.schedule.self_conditioning: one for one in plan.iterations}
        self._programs: dict[tuple[str, bool, int], Program] = {}
        self._encoding: Encoding | None = None

    def _release(self) -> None:
        used = [stage.part.chain.layers[at] for stage in self._stages.values() for at in stage.layers]
        used += [layer for part in self._training.frozen for layer in part.chain.layers]
        kept = {id(module) for layer in used for one in layer.modules.values() for module in one.modules()}
        for trained in self._training.backbones:
            for module in (one for layer in trained.chain.layers for one in layer.modules.values()):
                if not any(id(one) in kept for one in module.modules()):
                    module.to("meta")

    def _gradient_groups(self, timeout: timedelta | None) -> dict[tuple[int, int], GradientSum]:
        """Return for each stage of this rank the sum of its gradients over its replicas in all groups."""
        found = {}
        plan = self._plan
        for devices in self._layout.places:
            ranks = [group * plan.group + device for group in range(plan.groups) for device in devices]
            made = dist.new_group(ranks, timeout=timeout) if len(ranks) > 1 else None
            if self._own in devices:
                for key in self._layout.stages_of(devices[0]):
                    found[key] = GradientSum(self._stages[key].parameters(), made, len(ranks))
        return found

    def _program(self, what: str, twice: bool, rows: int) -> Program:
        """Return the program for the group's rows of a batch: its passes, filled or not, its forward passes alone, or
        the frozen part alone."""
        key = (what, twice, rows)
        if key not in self._programs:
            layout = replace(self._layout, batch=rows)
            if what == "frozen":
                work = FrozenWork(self._profile.frozen, rows, self._plan.group)
                steps = frozen_program(work.rest(work.start()), self._plan.group)
            elif what == "filled":
                steps = filled_program(layout, self._iterations[twice])
            else:
                kinds = [kind for kind in Pass if what == "passes" or kind is not Pass.BACKWARD]
                one = self._iterations.get(twice)
                if one is None:  # a plan whose iterations all have a second pass, and a batch without it
                    one = self._iterations[True]
                    kinds.remove(Pass.SELF_CONDITIONING)
                steps = pass_program(layout, one.schedule, kinds)
            self._programs[key] = linked(steps, layout, self._training)
        return self._programs[key]

    def step(self, batch: Rows, upcoming: Rows | None = None, loss_scale: float = 1.0) -> float:
        """Add `loss_scale` times the gradients of the iteration's loss to the parameters; return the loss.

        The loss is the same on every rank. The frozen part of `upcoming` runs in the bubbles, if the plan fills them.
        """
        planned = self._plan.batch * self._plan.groups
        if len(batch) != planned:
            raise InvalidRequestError("batch", f"must have {planned} samples, as planned", len(batch))
        encoding, twice = self._encoded(batch), self._twice(batch)
        planned_one = self._iterations.get(twice)
        fills = planned_one is not None and planned_one.filling is not None and bool(self._training.frozen)
        ahead = upcoming if fills and upcoming is not None and len(upcoming) == planned else None
        program = self._program("passes" if ahead is None else "filled", twice, self._plan.batch)
        with earlier_gradients(self.parameters().values()):
            self._encoding = self._play(program, encoding, ahead, loss_scale)
            for key in self._stages:
                self._sums[key].finish()
        return self._loss()

    @torch.no_grad()
    def evaluate(self, batch: Rows) -> float:
        """Return the loss of a batch of any size, the same on every rank; leaves gradients as they are."""
        program = self._program("forward", self._twice(batch), len(self._rows(batch)))
        self._play(program, self._encoded(batch), None, 1.0, train=False)
        return self._loss()

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the trainable parameters of this rank's stages by their names in the whole model; of two backbones,
        with the backbone's name before."""
        many = len(self._training.backbones) > 1
        found = {}
        for stage in self._stages.values():
            prefix = f"{stage.part.chain.name}." if many else ""
            found.update({f"{prefix}{name}": one for name, one in stage.parameters().items()})
        return found

    @torch.no_grad()
    def gather(self) -> None:
        """Write the trained parameters of every stage into the model on every rank that has not released them.

        All ranks call it. A rank that has released its other stages takes part, and keeps nothing.
        """
        for pipeline, part in enumerate(self._training.backbones):
            for stage, layers in enumerate(self._plan.cut.stages[pipeline]):
                owner = self._layout.places[self._plan.cut.place_of(pipeline, stage)][0]
                for parameter in trainable([part.chain.layers[at] for at in layers]).values():
                    held = torch.empty_like(parameter, device=self._device) if parameter.is_meta else parameter.detach()
                    dist.broadcast(held, src=owner)

    def gradient_norm(self) -> float:
        """Return the norm of all gradients over all ranks, each parameter counted once; the same on every rank."""
        squares = torch.zeros(1, dtype=torch.float64, device=self._device)
        for key, stage in self._stages.items():
            for parameter in stage.parameters().values():
                if parameter.grad is not None:
                    squares += parameter.grad.float().square().sum().double() / self._sums[key].ranks
        dist.all_reduce(squares)
        return math.sqrt(squares.item())

    @property
    def waited_s(self) -> float:
        """Return the seconds in which this rank waited for other ranks, over all iterations: what bubbles left idle."""
        return self._transport.waited_s + sum(one.waited_s for one in self._sums.values())

    def _twice(self, batch: Rows) -> bool:
        twice = bool(batch.second_pass) and all(one.self_conditioned for one in self._training.backbones)
        if twice and True not in self._iterations:
            raise InvalidRequestError("self_conditioning", "the plan has no iterations with a second pass")
        return twice

    def _rows(self, batch: Rows) -> range:
        """Return the rows of a batch that this rank's group trains on."""
        return share(range(len(batch)), self._group, self._plan.groups)

    def _encoded(self, batch: Rows) -> Encoding:
        """Return the frozen outputs of a batch: from the bubbles of the iteration before, or computed now."""
        kept = self._encoding
        if kept is not None and kept.batch == batch:
            return kept
        found = self._play(self._program("frozen", False, len(self._rows(batch))), None, batch, 1.0)
        assert found is not None, "the program encodes a batch"
        return found

    def _play(
        self, program: Program, encoding: Encoding | None, upcoming: Any, loss_scale: float, *, train: bool = True
    ) -> Encoding | None:
        """Run a program with the frozen outputs of its batch; return those of the next batch, if it encodes one."""
        own = program.devices[self._own]
        ahead = None if upcoming is None else Encoding(self._training, own, upcoming, self._rows(upcoming).start)
        sizes = (
            None if encoding is None else (encoding.batch.size, train),
            None if ahead is None else ahead.batch.size,
        )
        self._transport.begin(program, *sizes)
        DeviceRun(self._held, own, encoding, ahead, loss_scale=loss_scale, train=train).all_steps()
        if ahead is not None:
            values = stage_values(self._training, self._layout, self._own)
            layout = replace(self._layout, batch=len(self._rows(upcoming)))
            ahead.complete(values, layout.all_rows(self._own), self._transport.receive)
        self._transport.finish()
        return ahead

    def _loss(self) -> float:
        total = torch.zeros(1, dtype=torch.float64, device=self._device)
        for stage in self._stages.values():
            for loss in stage.losses:
                total += loss.double()
            stage.losses.clear()
        dist.all_reduce(total)
        return total.item()


def check_plan(training: Training, plan: Plan, profile: Profile, ranks: int) -> None:
    """Raise InvalidRequestError if the plan, the profile, the parts and the number of ranks do not belong together."""
    if ranks != plan.group * plan.groups:
        raise InvalidRequestError("devices", f"the plan is for {plan.group * plan.groups} ranks", ranks)
    model = [(part.chain.name, len(part.chain.layers)) for part in training.backbones]
    model += [(part.chain.name, len(part.chain.layers)) for part in training.frozen]
    planned = [(part.name, len(part.layers)) for part in plan.backbones]
    planned += [(part.name, len(part.layers)) for part in profile.frozen]
    for (name, count), (wanted, wanted_count) in zip_longest(model, planned, fillvalue=("no further part", 0)):
        if count != wanted_count:
            rule = f"must be of this model: {wanted} has {wanted_count} layers, but {name} here has {count}"
            raise InvalidRequestError("profile", rule)
