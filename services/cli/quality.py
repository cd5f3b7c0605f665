"""`afterimage cache quality`: verdicts of the live checks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from protos import cache_maintainer_pb2 as pb
from services.cli.display.tables import WIDE, Column, fitted
from services.cli.display.words import wide
from services.cli.maintainer import DataDir, Target, ask_maintainer

LOOK = ("contrast", "saturation", "sharpness")


def quality(
    model: Annotated[str, typer.Option(help="Only this model's hits. Default: those of all served models.")] = "",
    reset: Annotated[bool, typer.Option("--reset", help="Drop the checks, so that stopped reuse is in force.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Reset without a question.")] = False,
    data_dir: DataDir = None,
    target: Target = None,
) -> None:
    """Show how hits compare with the same requests from noise, by relation, source and start step K.

    While no job waits, AFTERIMAGE_CHECK_SHARE of hits are generated again from noise. Where too many are worse, reuse
    stops until --reset. Each ratio is hit ÷ noise; the CLIP ratio has its 95 % bounds.

    Examples: afterimage cache quality · afterimage cache quality --reset --yes
    """
    question = "Put stopped reuse in force again? Purge or repair the cache first." if reset and not yes else ""
    reply = ask_maintainer(data_dir, target, "Quality", pb.QualityRequest(model=model, reset=reset), question)
    out = wide()
    out.print(quality_table(reply.cells, out.width))
    share = f"{reply.check_share:.3g} of hits are checked" if reply.check_share else "hits are not checked"
    out.print(f"{share} (AFTERIMAGE_CHECK_SHARE), while no job waits", style="dim")


def quality_table(cells: Sequence[pb.CheckedCell], width: int = WIDE) -> Table:
    """Return a table with one row per cell of live checks."""
    columns = ("model", "relation", "from", "K", "checked", "failed", "CLIP ratio", *LOOK, "reuse")
    rows = []
    for cell in cells:
        clip, place = cell.ratios["score"], f"{cell.start_step} of {cell.steps}" if cell.steps else "all"
        bounds = f" ({clip.low:.2f} to {clip.high:.2f})" if clip.high else ""
        when = datetime.fromtimestamp(cell.stopped_at).strftime("%m-%d %H:%M:%S")
        rows.append(
            (
                cell.model,
                cell.relation or ("all" if not cell.steps else "–"),
                cell.source or "all",
                place,
                str(cell.checks),
                str(cell.fails),
                f"{clip.value:.2f}{bounds}" if cell.checks else "–",
                *(f"{cell.ratios[name].value:.2f}" if cell.checks else "–" for name in LOOK),
                f"stopped since {when}" if cell.stopped_at else "in force",
            )
        )
    return fitted([Column(name) for name in columns], rows, width)
