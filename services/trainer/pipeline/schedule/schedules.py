"""Schedules of pipelines: for each place in the chain of devices a table of actions, with their dependencies.

GPipe (Huang et al., 2019), 1F1B in FIFO order (DiffusionPipe Fig. 2) and the bidirectional schedule of Chimera
(Fig. 3), each with or without the second forward pass of self-conditioning (Fig. 10). The figures' images are not in
the text of the paper at hand, so the tables follow from their captions and §2.2.

A *place* is one position in the chain; its replicas all run the place's table, each on its part of a micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from services.trainer.pipeline.schedule.list_scheduling import Task, list_schedule
from shared.domain.errors import InvalidRequestError


class Pass(StrEnum):
    """One pass of a micro-batch through a stage."""

    SELF_CONDITIONING = "self-conditioning"
    """The additional forward pass, without gradients, whose result feeds the forward pass."""
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one micro-batch through one stage of one pipeline (0: down, 1: up)."""

    kind: Pass
    pipeline: int
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Schedule:
    """The table of actions: each place runs its row from left to right, each action once its needs are met."""

    name: str
    stages: int
    micro_batches: int
    """M of each pipeline."""
    self_conditioning: bool
    places: tuple[tuple[Action, ...], ...]

    @property
    def pipelines(self) -> int:
        return 1 + any(action.pipeline for action in self.places[0])

    def place_of(self, action: Action) -> int:
        return place_of(action, self.stages)

    def needs(self, action: Action) -> tuple[Action, ...]:
        """Return the actions whose results this one reads."""
        return needs(action, self.stages, self.self_conditioning)


def place_of(action: Action, stages: int) -> int:
    """Return the place of an action's stage: the up pipeline starts at the last place."""
    return stages - 1 - action.stage if action.pipeline else action.stage


def needs(action: Action, stages: int, self_conditioning: bool) -> tuple[Action, ...]:
    """Return what an action reads: the stage before (forward) or after (backward), and its own forward pass.

    The first stage's forward pass reads the last stage's self-conditioning pass (C_f of Fig. 10).
    """
    kind, pipeline, stage, number = action.kind, action.pipeline, action.stage, action.micro_batch
    if kind is Pass.BACKWARD:
        forward = Action(Pass.FORWARD, pipeline, stage, number)
        return (forward,) if stage == stages - 1 else (forward, Action(kind, pipeline, stage + 1, number))
    if stage:
        return (Action(kind, pipeline, stage - 1, number),)
    if kind is Pass.FORWARD and self_conditioning:
        return (Action(Pass.SELF_CONDITIONING, pipeline, stages - 1, number),)
    return ()


def gpipe(stages: int, micro_batches: int, *, self_conditioning: bool = False) -> Schedule:
    """Return GPipe's schedule: every forward pass, then every backward pass."""
    _check(stages, micro_batches)
    kinds = (Pass.SELF_CONDITIONING,) * self_conditioning + (Pass.FORWARD, Pass.BACKWARD)
    table = tuple(
        tuple(Action(kind, 0, place, number) for kind in kinds for number in range(micro_batches))
        for place in range(stages)
    )
    return Schedule("gpipe", stages, micro_batches, self_conditioning, table)


def one_forward_one_backward(
    stages: int, micro_batches: int, *, self_conditioning: bool = False, cover_transfers: bool = False
) -> Schedule:
    """Return the FIFO-1F1B schedule: stage s holds at most S − s micro-batches, then alternates.

    cover_transfers: see `held_micro_batches`. With self-conditioning the table comes from list scheduling in unit
    slots: the additional passes of later micro-batches fill slots in which a stage would wait for the first ones.
    """
    if self_conditioning:
        return min(listed_tables(stages, micro_batches, 1, True, cover_transfers), key=slots)
    _check(stages, micro_batches)
    rows = []
    for place in range(stages):
        first = min(micro_batches, held_micro_batches(stages, place, cover_transfers))
        row = [Action(Pass.FORWARD, 0, place, number) for number in range(first)]
        for number in range(micro_batches):
            row.append(Action(Pass.BACKWARD, 0, place, number))
            if number + first < micro_batches:
                row.append(Action(Pass.FORWARD, 0, place, number + first))
        rows.append(tuple(row))
    return Schedule("1f1b", stages, micro_batches, False, tuple(rows))


def bidirectional(
    stages: int, micro_batches: int, *, self_conditioning: bool = False, cover_transfers: bool = False
) -> Schedule:
    """Return two pipelines in opposite directions on the same places, M micro-batches each (Fig. 3)."""
    return min(listed_tables(stages, micro_batches, 2, self_conditioning, cover_transfers), key=slots)


def candidates(stages: int, micro_batches: int, pipelines: int, self_conditioning: bool) -> tuple[Schedule, ...]:
    """Return the tables of 1F1B (one pipeline) or bidirectional schedules among which profiled times decide.

    All of them keep the passes of 1F1B under the same limits. They differ in which pass goes first when several are
    ready, and in the limits. Stages of unequal times have no one best table.
    """
    if pipelines == 1 and not self_conditioning:
        return tuple(one_forward_one_backward(stages, micro_batches, cover_transfers=cover) for cover in (False, True))
    return tuple(
        table
        for cover in (False, True)
        for table in listed_tables(stages, micro_batches, pipelines, self_conditioning, cover)
    )


@cache
def paired_rounds(stages: int, micro_batches: int) -> float:
    """Return M_CDM of eq. 12, which the paper does not define: (makespan − 2·(S − 1)) / 2 of the unit-slot table.

    It is M_d + M_u − S/2 for an even S and M_d = M_u: 6 for Fig. 3, whose table has 18 slots.
    """
    table = bidirectional(stages, micro_batches)
    return (slots(table) - 2 * (stages - 1)) / 2


def slots(schedule: Schedule) -> int:
    """Return the makespan of a table where every pass takes one slot and transfers take none."""
    ends: dict[Action, int] = {}
    free, at = [0] * schedule.stages, [0] * schedule.stages
    left = sum(map(len, schedule.places))
    while left:
        for place, row in enumerate(schedule.places):
            while at[place] < len(row) and all(need in ends for need in schedule.needs(row[at[place]])):
                action = row[at[place]]
                free[place] = 1 + max([free[place], *(ends[need] for need in schedule.needs(action))])
                ends[action] = free[place]
                at[place] += 1
                left -= 1
    return max(free)


@cache
def listed_tables(
    stages: int, micro_batches: int, pipelines: int, self_conditioning: bool, cover_transfers: bool
) -> tuple[Schedule, ...]:
    """Return the tables that list scheduling makes in unit slots, one for each order of precedence of the passes.

    A stage holds a limited number of micro-batches from forward to backward, as in 1F1B: only these hold activations.
    With cover_transfers a result takes a slot to the next stage.
    """
    _check(stages, micro_batches)
    kinds = (Pass.SELF_CONDITIONING,) * self_conditioning + (Pass.FORWARD, Pass.BACKWARD)
    accounts = [(pipeline, stage) for pipeline in range(pipelines) for stage in range(stages)]
    held: dict[Hashable, int] = {one: held_micro_batches(stages, one[1], cover_transfers) for one in accounts}
    actions = [
        Action(kind, pipeline, stage, number)
        for pipeline, stage in accounts
        for number in range(micro_batches)
        for kind in kinds
    ]
    found = []
    for order in itertools.permutations(reversed(kinds)):
        tasks = {
            one: Task(
                place=place_of(one, stages),
                needs=needs(one, stages, self_conditioning),
                rank=(order.index(one.kind), one.micro_batch, one.stage),
                opens=(one.pipeline, one.stage) if one.kind is Pass.FORWARD else None,
                closes=(one.pipeline, one.stage) if one.kind is Pass.BACKWARD else None,
            )
            for one in actions
        }
        table = list_schedule(tasks, stages, held, delay=int(cover_transfers))
        name = "1f1b" if pipelines == 1 else "bidirectional"
        found.append(Schedule(name, stages, micro_batches, self_conditioning, table))
    return tuple(found)


def held_micro_batches(stages: int, stage: int, cover_transfers: bool = False) -> int:
    """Return how many micro-batches a stage holds at most between their forward and backward passes.

    S − s in 1F1B. Then a stage waits for the transfers of each round trip, and eq. 1 is no upper bound where transfers
    are long; with cover_transfers the limit counts each link as a stage, 2·(S − s) − 1, and eq. 1 holds.
    """
    return 2 * (stages - stage) - 1 if cover_transfers else stages - stage


def _check(stages: int, micro_batches: int) -> None:
    if stages < 1:
        raise InvalidRequestError("stages", "must be at least 1", stages)
    if micro_batches < 1:
        raise InvalidRequestError("micro_batches", "must be at least 1", micro_batches)
