"""Play a schedule with profiled times: when each pass runs, when gradients are summed, and what stays idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.costs.stage_costs import Conditions, feedback_s, sync_s
from services.trainer.pipeline.cuts.partition import Partition
from services.trainer.pipeline.schedule.schedules import Action, Pass, Schedule


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one stage for one micro-batch."""

    forward_s: float
    backward_s: float
    received_s: float = 0.0
    """Transfer of its input from the stage before."""
    returned_s: float = 0.0
    """Transfer of its input's gradient to the stage before."""
    feedback_s: float = 0.0
    """Transfer of the last stage's output to this one, the first (T_F)."""
    sync_s: float = 0.0
    """All-reduce of its gradients, once an iteration (T_S)."""


@dataclass(frozen=True)
class Played:
    """One pass, with its start and end in seconds from the start of the iteration."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Sync:
    """The all-reduce of one stage's gradients."""

    pipeline: int
    stage: int
    place: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A played schedule."""

    places: tuple[tuple[Played, ...], ...]
    syncs: tuple[Sync, ...]

    @property
    def computed_s(self) -> float:
        """Return the end of the last pass."""
        return max(row[-1].end_s for row in self.places)

    @property
    def end_s(self) -> float:
        """Return the end of the last pass or synchronisation."""
        return max([self.computed_s, *(sync.end_s for sync in self.syncs)])

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Return the seconds of computation of each place."""
        return tuple(sum(one.end_s - one.start_s for one in row) for row in self.places)


Times = Mapping[tuple[int, int], StageTimes]
"""(pipeline, stage) → its seconds."""


def stage_times(profile: Profile, backbones: Sequence[Backbone], cut: Partition, conditions: Conditions) -> Times:
    """Return what each stage of a partition takes, from the profile.

    A transfer moves the part of a micro-batch that one replica of the later stage takes, B/r, as in eq. 3.
    """
    found = {}
    for pipeline, (backbone, stages) in enumerate(zip(backbones, cut.stages, strict=True)):
        for stage, layers in enumerate(stages):
            replicas = cut.replicas[cut.place_of(pipeline, stage)]
            local = conditions.micro_batch / replicas
            before = backbone.layers[layers.start - 1] if layers.start else None
            gradients = sum(backbone.layers[at].gradient_bytes for at in layers)
            found[pipeline, stage] = StageTimes(
                forward_s=sum(backbone.forward_s(at, local) for at in layers),
                backward_s=sum(backbone.backward_s(at, local) for at in layers),
                received_s=_sent(profile, conditions, local * before.output_bytes_per_sample if before else None),
                returned_s=_sent(profile, conditions, local * before.returned_bytes_per_sample if before else None),
                feedback_s=0.0 if len(stages) == 1 else feedback_s(profile, backbone, local),
                sync_s=sync_s(profile, conditions, gradients, replicas),
            )
    return found


def _sent(profile: Profile, conditions: Conditions, sent_bytes: float | None) -> float:
    return 0.0 if sent_bytes is None else conditions.transfer_factor * profile.p2p.seconds(sent_bytes)


def simulate(schedule: Schedule, times: Times) -> Timeline:
    """Play the table: each place runs its row in order, and waits for the results that an action reads.

    Transfers overlap with computation. The all-reduce of a stage's gradients begins with its last backward pass, which
    yields them layer by layer (eq. 5), and ends after this pass; the all-reduces of one place run one after the other.
    """
    ends: dict[Action, float] = {}
    rows: list[list[Played]] = [[] for _ in schedule.places]
    left = sum(map(len, schedule.places))
    while left:
        before = left
        for row, played in zip(schedule.places, rows, strict=True):
            while len(played) < len(row):
                action = row[len(played)]
                needs = schedule.needs(action)
                if any(need not in ends for need in needs):
                    break
                start = max(
                    [played[-1].end_s if played else 0.0]
                    + [ends[need] + _transfer_s(need, action, times) for need in needs]
                )
                ends[action] = start + _pass_s(action, times)
                played.append(Played(action, start, ends[action]))
                left -= 1
        if left == before:
            raise RuntimeError(f"the table of {schedule.name} has a cycle: {left} actions cannot start")
    return Timeline(tuple(map(tuple, rows)), tuple(_syncs(rows, times)))


def fastest(tables: Iterable[Schedule], times: Times) -> tuple[Schedule, Timeline]:
    """Return the table with the earliest end at these times, and how it plays; the first one of equals."""
    played = [(table, simulate(table, times)) for table in tables]
    return min(played, key=lambda one: one[1].end_s)


def _pass_s(action: Action, times: Times) -> float:
    stage = times[action.pipeline, action.stage]
    return stage.backward_s if action.kind is Pass.BACKWARD else stage.forward_s


def _transfer_s(need: Action, action: Action, times: Times) -> float:
    """Return the time of the transfer between two passes; 0 within a stage."""
    if need.kind is Pass.SELF_CONDITIONING and action.kind is Pass.FORWARD:
        return times[action.pipeline, action.stage].feedback_s
    if need.stage < action.stage:
        return times[action.pipeline, action.stage].received_s
    if need.stage > action.stage:
        return times[need.pipeline, need.stage].returned_s
    return 0.0


def _syncs(rows: Sequence[Sequence[Played]], times: Times) -> list[Sync]:
    found = []
    for place, row in enumerate(rows):
        last = {(one.action.pipeline, one.action.stage): one for one in row if one.action.kind is Pass.BACKWARD}
        free = 0.0
        for (pipeline, stage), one in sorted(last.items(), key=lambda item: item[1].start_s):
            if taken := times[pipeline, stage].sync_s:
                start = max(one.start_s, free)
                free = max(one.end_s, start + taken)
                found.append(Sync(pipeline, stage, place, start, free))
    return found


def peak_bytes(schedule: Schedule, held_bytes: Callable[[Action], float]) -> tuple[float, ...]:
    """Return for each place the most bytes of activations held at once; held_bytes: of one forward pass."""
    peaks = []
    for row in schedule.places:
        held = peak = 0.0
        for action in row:
            if action.kind is Pass.FORWARD:
                held += held_bytes(action)
                peak = max(peak, held)
            elif action.kind is Pass.BACKWARD:
                held -= held_bytes(action)
        peaks.append(peak)
    return tuple(peaks)
