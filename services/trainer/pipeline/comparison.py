"""Compare the best pipeline with its baselines, and say whether a pipeline is worth it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.pipeline.baselines import DDP_ASSUMES, FSDP_ASSUMES, DataParallel, ddp, fsdp
from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.filling.one_bubble import Piece
from services.trainer.pipeline.plans import Iteration, Plan
from services.trainer.pipeline.search import best_plan
from services.trainer.pipeline.settings import PlanSettings

GPIPE_STAGES, GPIPE_MICRO_BATCHES = 2, 4
"""The paper's GPipe baseline (§6)."""


@dataclass(frozen=True)
class Row:
    """One system and its predicted figures."""

    name: str
    how: str
    seconds: float
    bubble_share: float | None
    """None: no pipeline."""
    bubble_share_unfilled: float | None
    memory_bytes: float
    """Of the fullest device."""


@dataclass(frozen=True)
class Comparison:
    """All systems on one job."""

    settings: PlanSettings
    plan: Plan | None
    """The fastest pipeline; None if none is feasible."""
    rows: tuple[Row, ...]
    data_parallel: DataParallel
    """The faster of DDP and FSDP that fits in memory; if none fits, FSDP. DDP where FSDP does not compete."""

    @property
    def worth_it(self) -> bool:
        """Return whether the pipeline is faster than data-parallel training, or the only one that fits."""
        if self.plan is None:
            return False
        return self.plan.seconds < self.data_parallel.seconds or not _fits(self.data_parallel, self.settings)

    @property
    def verdict(self) -> str:
        """Return one sentence with the numbers."""
        other = self.data_parallel
        if self.plan is None and not _fits(other, self.settings):
            return f"Nothing fits: no pipeline does, and {other.name} needs more memory than a device has."
        if self.plan is None:
            return f"Plan {other.name} ({other.seconds:.4g} s): no pipeline fits these devices, batch and layers."
        times = f"{self.plan.seconds:.4g} s an iteration against {other.seconds:.4g} s"
        if not _fits(other, self.settings):
            return f"Plan the pipeline: {times}, and {other.name} needs more memory than a device has."
        if self.worth_it:
            return (
                f"Plan the pipeline: {times} with {other.name}, {other.seconds / self.plan.seconds:.2f} times as fast."
            )
        return f"A pipeline is not worth it: {times} with {other.name}. Plan {other.name}."


def compare(profile: Profile, settings: PlanSettings, *, with_fsdp: bool = True) -> Comparison:
    """Plan a job, and predict its baselines: the same search without filling (as SPP), GPipe, DDP and FSDP.

    with_fsdp: the pipeline competes with FSDP too; else with DDP alone.
    """
    plan = best_plan(profile, settings)
    rows = []
    if plan is not None:
        rows.append(_row("DiffusionPipe" if settings.fill else "pipeline without filling", plan))
    unfilled = settings.model_copy(update={"fill": False})
    if settings.fill and (spp := best_plan(profile, unfilled)) is not None:
        rows.append(_row("SPP-like, without filling", spp))
    if len(profile.backbones) == 1:
        fixed = unfilled.model_copy(update={"stages": (GPIPE_STAGES,), "micro_batches": (GPIPE_MICRO_BATCHES,)})
        if (gpipe := best_plan(profile, fixed, "gpipe")) is not None:
            rows.append(_row("GPipe", gpipe))
    parallel = [ddp(profile, settings), fsdp(profile, settings)]
    rows += [
        Row(one.name, f"local batch {one.local_batch}", one.seconds, None, None, one.memory_bytes) for one in parallel
    ]
    rivals = parallel if with_fsdp else parallel[:1]
    fitting = [one for one in rivals if _fits(one, settings)]
    return Comparison(settings, plan, tuple(rows), min(fitting or rivals[-1:], key=lambda one: one.seconds))


def as_json(comparison: Comparison, profile: Profile) -> dict[str, Any]:
    """Return everything that was planned, for a program."""
    return {
        "verdict": comparison.verdict,
        "worth_it": comparison.worth_it,
        "systems": [
            {
                "name": row.name,
                "how": row.how,
                "iteration_s": row.seconds,
                "samples_per_s": comparison.settings.batch / row.seconds,
                "bubble_of_iteration": row.bubble_share,
                "bubble_of_iteration_unfilled": row.bubble_share_unfilled,
                "memory_bytes": row.memory_bytes,
            }
            for row in comparison.rows
        ],
        "assumptions": {"DDP": DDP_ASSUMES, "FSDP": FSDP_ASSUMES},
        "settings": comparison.settings.model_dump(mode="json"),
        "plan": None if comparison.plan is None else plan_as_json(comparison.plan, profile),
    }


def plan_as_json(plan: Plan, profile: Profile) -> dict[str, Any]:
    """Return a plan: partition, and for each kind of iteration the table of actions and what fills each bubble."""
    return {
        "stages": plan.stages,
        "micro_batches": plan.micro_batches,
        "group": plan.group,
        "groups": plan.groups,
        "batch_of_group": plan.batch,
        "replicas": list(plan.cut.replicas),
        "backbones": {
            one.name: [[layers.start, layers.stop] for layers in stages]
            for one, stages in zip(plan.backbones, plan.cut.stages, strict=True)
        },
        "bound_s": plan.cut.bound_s,
        "iteration_s": plan.seconds,
        "bubble_of_iteration": plan.bubble_share,
        "bubble_of_iteration_unfilled": plan.bubble_share_unfilled,
        "memory_bytes": list(plan.memory_bytes),
        "iterations": [_iteration(one, profile) for one in plan.iterations],
    }


def _iteration(one: Iteration, profile: Profile) -> dict[str, Any]:
    def piece(run: Piece) -> dict[str, Any]:
        component = profile.frozen[run.component]
        return {
            "component": component.name,
            "layer": component.layers[run.layer].name,
            "samples": run.samples,
            "local_batch": run.local_batch,
            "seconds": run.seconds,
        }

    found: dict[str, Any] = {
        "probability": one.probability,
        "schedule": one.schedule.name,
        "self_conditioning": one.schedule.self_conditioning,
        "pipeline_s": one.timeline.end_s,
        "frozen_s": one.frozen_s,
        "iteration_s": one.seconds,
        "places": [
            [[str(run.action.kind), run.action.pipeline, run.action.micro_batch] for run in row]
            for row in one.timeline.places
        ],
    }
    runs = {} if one.filling is None else {filled.bubble: filled.pieces for filled in one.filling.bubbles}
    found["bubbles"] = [
        {
            "start_s": bubble.start_s,
            "end_s": bubble.end_s,
            "devices": list(bubble.devices),
            "runs": [piece(run) for run in runs.get(bubble, ())],
        }
        for bubble in one.bubbles
    ]
    if one.filling is not None:
        found["after_the_pipeline"] = [piece(run) for run in one.filling.rest]
    return found


def _row(name: str, plan: Plan) -> Row:
    how = f"S = {plan.stages}, M = {plan.micro_batches}, D = {plan.group}"
    return Row(name, how, plan.seconds, plan.bubble_share, plan.bubble_share_unfilled, max(plan.memory_bytes))


def _fits(one: DataParallel, settings: PlanSettings) -> bool:
    return settings.device_memory_bytes is None or one.memory_bytes <= settings.device_memory_bytes
