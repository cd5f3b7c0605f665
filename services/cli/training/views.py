"""Show plans and simulated schedules on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.cli.display.tables import Column, fitted
from shared.models.memory import said

if TYPE_CHECKING:
    from rich.table import Table

    from services.trainer.pipeline.comparison import Comparison
    from services.trainer.pipeline.costs.profile import Profile
    from services.trainer.pipeline.plans import Plan

SYSTEMS = (
    Column("system", least=12),
    Column("how", least=10, leave=2),
    Column("iteration s", right=True),
    Column("samples/s", right=True),
    Column("bubbles", right=True),
    Column("unfilled", right=True, leave=3),
    Column("memory", right=True, leave=1),
)


def systems_table(found: Comparison, width: int) -> Table:
    """Return one row per system."""
    rows = [
        [
            row.name,
            row.how,
            f"{row.seconds:.4g}",
            f"{found.settings.batch / row.seconds:.4g}",
            _share(row.bubble_share),
            _share(row.bubble_share_unfilled),
            said(int(row.memory_bytes)),
        ]
        for row in found.rows
    ]
    title = f"batch {found.settings.batch} on {found.settings.devices} devices"
    return fitted(SYSTEMS, rows, width, title=title)


def figures_of(one: Plan) -> dict[str, Any]:
    """Return the figures of a simulated schedule."""
    frozen_s = one.iterations[0].frozen_s
    idle = sum(run.probability * run.unfilled.idle_device_s for run in one.iterations) / one.group
    return {
        "stages": one.stages,
        "micro_batches": one.micro_batches,
        "iteration_s": one.seconds,
        "pipeline_s": one.pipeline_s,
        "frozen_s": frozen_s,
        "bubble_of_iteration": one.bubble_share,
        "bubble_of_iteration_unfilled": one.bubble_share_unfilled,
        "bubble_of_frozen": idle / frozen_s if frozen_s else None,
        "bound_s": one.cut.bound_s,
        "memory_bytes": list(one.memory_bytes),
    }


def details(one: Plan | None, model: Profile) -> list[str]:
    """Return lines about the cuts and the memory of each place."""
    if one is None:
        return []
    lines = []
    for backbone, stages in zip(one.backbones, one.cut.stages, strict=True):
        cuts = ", ".join(f"{layers.start}–{layers.stop - 1}" for layers in stages)
        lines.append(f"{backbone.name}: layers {cuts}; devices of a stage: {', '.join(map(str, one.cut.replicas))}")
    lines.append(f"memory by place: {', '.join(said(int(value)) for value in one.memory_bytes)}")
    if model.source:
        lines.append(f"profile: {model.source}")
    return lines


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
