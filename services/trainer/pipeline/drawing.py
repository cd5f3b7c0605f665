"""Draw an iteration as SVG: one row for each device, time to the right, without any library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from services.trainer.pipeline.costs.profile import FrozenComponent
from services.trainer.pipeline.plans import Iteration, Plan
from services.trainer.pipeline.schedule.bubbles import devices_of
from services.trainer.pipeline.schedule.schedules import Pass

WIDTH, LEFT, ROW, GAP = 1200, 90, 26, 4
TOP, BOTTOM = 46, 34
TICKS = 10
FILLS = {
    "forward": "#7aa6da",
    "self-conditioning": "#c3d7ef",
    "backward": "#e59a9a",
    "frozen layer": "#8fc48f",
    "synchronisation": "#d9c37a",
    "idle": "#e4e4e4",
}
SMALLEST_TEXT = 14
"""Width in pixels below which a box has no number."""


def draw(plan: Plan, frozen: Sequence[FrozenComponent]) -> str:
    """Return the SVG of a plan: each kind of iteration below the other."""
    heights = [TOP + BOTTOM + plan.group * (ROW + GAP) for _ in plan.iterations]
    parts = []
    for number, iteration in enumerate(plan.iterations):
        shifted = f'<g transform="translate(0 {sum(heights[:number])})">'
        parts.append(shifted + "\n".join(_iteration(iteration, plan, frozen)) + "</g>")
    size = f'width="{WIDTH}" height="{sum(heights)}" viewBox="0 0 {WIDTH} {sum(heights)}"'
    style = "<style>text{font:11px sans-serif;fill:#222} .n{font-size:10px;text-anchor:middle}</style>"
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', style, back, *parts, "</svg>"]) + "\n"


def _iteration(one: Iteration, plan: Plan, frozen: Sequence[FrozenComponent]) -> Iterator[str]:
    """Yield the elements of one iteration."""
    lead = 0.0 if one.filling is not None else one.frozen_s
    end = one.seconds
    scale = (WIDTH - LEFT - 10) / end if end else 0.0
    rows = devices_of(plan.cut.replicas)
    with_passes = "with" if one.schedule.self_conditioning else "without"
    yield (
        f'<text x="{LEFT}" y="14">{escape(one.schedule.name)}: S = {plan.stages}, M = {plan.micro_batches}, '
        f"D = {plan.group}, {with_passes} self-conditioning, {end:.4g} s</text>"
    )
    yield from _legend()
    for rank in range(plan.group):
        yield f'<text x="8" y="{_y(rank) + 17}">device {rank}</text>'
        yield _box(0, end, rank, scale, "idle", "idle")
    for sync in one.timeline.syncs:
        for rank in rows[sync.place]:
            yield _box(
                lead + sync.start_s,
                lead + sync.end_s,
                rank,
                scale,
                "synchronisation",
                f"gradients of stage {sync.stage}",
            )
    for place, row in enumerate(one.timeline.places):
        for run in row:
            action = run.action
            name = plan.backbones[action.pipeline].name
            title = f"{name}, stage {action.stage}, {action.kind} of micro-batch {action.micro_batch}"
            kind = "self-conditioning" if action.kind is Pass.SELF_CONDITIONING else str(action.kind)
            for rank in rows[place]:
                yield _box(lead + run.start_s, lead + run.end_s, rank, scale, kind, title, str(action.micro_batch))
    yield from _frozen(one, plan, frozen, scale)
    for tick in range(TICKS + 1):
        time = end * tick / TICKS
        yield f'<text class="n" x="{LEFT + time * scale:.1f}" y="{_y(plan.group) + 14}">{time:.3g} s</text>'


def _frozen(one: Iteration, plan: Plan, frozen: Sequence[FrozenComponent], scale: float) -> Iterator[str]:
    everyone = range(plan.group)
    if one.filling is None:
        for rank in everyone:
            yield _box(0, one.frozen_s, rank, scale, "frozen layer", "frozen part, before the pipeline")
        return
    runs = [(filled.bubble.start_s, filled.bubble.devices, filled.pieces) for filled in one.filling.bubbles]
    runs.append((one.timeline.end_s, tuple(everyone), one.filling.rest))
    for start, devices, pieces in runs:
        at = start
        for piece in pieces:
            component = frozen[piece.component]
            title = f"{component.name}, {component.layers[piece.layer].name}, {piece.samples} samples"
            for rank in devices:
                yield _box(at, at + piece.seconds, rank, scale, "frozen layer", title, str(piece.layer))
            at += piece.seconds


def _legend() -> Iterator[str]:
    for number, (name, fill) in enumerate(FILLS.items()):
        x = LEFT + number * 140
        yield f'<rect x="{x}" y="22" width="12" height="12" fill="{fill}"/><text x="{x + 17}" y="32">{name}</text>'


def _box(start: float, end: float, rank: int, scale: float, kind: str, title: str, number: str = "") -> str:
    x, width = LEFT + start * scale, (end - start) * scale
    inside = f"<title>{escape(title)}: {start:.4g} to {end:.4g} s</title>"
    edge = "" if kind == "idle" else ' stroke="#fff" stroke-width=".5"'
    area = f'x="{x:.2f}" y="{_y(rank)}" width="{width:.2f}" height="{ROW}"'
    box = f'<rect {area} fill="{FILLS[kind]}"{edge}>{inside}</rect>'
    if number and width >= SMALLEST_TEXT:
        box += f'<text class="n" x="{x + width / 2:.1f}" y="{_y(rank) + 17}">{number}</text>'
    return box


def _y(rank: int) -> int:
    return TOP + rank * (ROW + GAP)
