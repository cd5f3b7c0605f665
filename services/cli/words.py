"""Plans and jobs in words and tables, for people."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.client import JobView, Picture
from shared.errors import AfterimageError
from shared.types import Plan, PlanSource


def wide() -> Console:
    """A console that wraps at the terminal's width, or late where there is no terminal (pipes, logs)."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def where_it_started(view: JobView) -> str:
    """One sentence: where the picture started, and what that saved."""
    plan, steps = view.job.plan, view.job.request.steps
    seconds = f" in {view.timings.total_s:.2f} s" if view.timings.total_s else ""
    if plan.source is PlanSource.EXACT:
        return f"Drawn before, exactly so: the stored picture{seconds}, no step run."
    if plan.source is PlanSource.NOISE:
        return f"Started from noise: {view.steps_run} steps{seconds}."
    source, model = chosen_prompt(plan), chosen_model(plan)
    said = f" from “{source}”" if source else ""
    if plan.source is PlanSource.IMAGE:
        said = f" from {model or 'another'}'s picture{f' of “{source}”' if source else ''}, by {view.model}"
    return (
        f"Started after step {plan.start_step} of {steps}{said} (similarity {plan.similarity:.3f}): "
        f"{view.steps_run} steps{seconds}, {plan.start_step} saved."
    )


def hint(plan: Plan) -> str:
    """What to try, where a hit's picture looks too much like the one it started from; else empty."""
    if plan.source is not PlanSource.LATENT or plan.fresh_noise:
        return ""
    return "Another seed looks much the same: --fresh-noise 1 varies details, --cache write draws it anew."


def chosen_prompt(plan: Plan) -> str:
    """The prompt of the picture that this one started from; empty from noise."""
    return next((candidate.prompt for candidate in plan.candidates if candidate.chosen), "")


def chosen_model(plan: Plan) -> str:
    """Who drew the picture that this one started from; empty from noise."""
    return next((candidate.model for candidate in plan.candidates if candidate.chosen), "")


def keep_picture(picture: Picture, path: Path) -> Path | None:
    """Writes the PNG; the folder that had to be made for it, None when it was there.

    Raises AfterimageError saying how to get the picture all the same.
    """
    folder = path.parent
    made = None if folder.is_dir() else folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.png)
    except OSError as error:
        again = f"afterimage jobs show {picture.job.id} --out FILE"
        raise AfterimageError(f"out: cannot write {path} ({error.strerror}); while it runs: {again}") from error
    return made


def candidates_table(plan: Plan) -> Table:
    """Everything the planner looked at, best first, and why it was or was not chosen."""
    table = Table(title="What the planner looked at", title_justify="left", expand=False)
    for name in ("", "prompt", "by", "kind"):
        table.add_column(name)
    for name in ("similarity", "K allowed", "K there"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for one in plan.candidates:
        table.add_row(
            "→" if one.chosen else "",
            Text(one.prompt or one.entry_id),
            one.model,
            one.kind,
            f"{one.similarity:.3f}",
            str(one.wished_step or "–"),
            str(one.start_step or "–"),
            Text(one.reason),
        )
    return table


def jobs_table(views: list[JobView]) -> Table:
    """One line a job; why it ended without a picture has a column where that happened."""
    table, ended_badly = Table(), any(view.job.error for view in views)
    for name in ("job", "state", "created", "source"):
        table.add_column(name, no_wrap=True)
    for name in ("start K", "steps run", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("prompt", overflow="ellipsis", no_wrap=True)
    if ended_badly:
        table.add_column("because", overflow="fold")
    for view in views:
        job = view.job
        table.add_row(
            job.id,
            job.state.value,
            datetime.fromtimestamp(job.created_at).strftime("%m-%d %H:%M:%S"),
            job.plan.source.value,
            f"{job.plan.start_step}/{job.request.steps}",
            str(view.steps_run),
            f"{view.timings.total_s:.2f}" if view.timings.total_s else "",
            Text(job.request.prompt),
            *([Text(job.error)] if ended_badly else []),
        )
    return table


def job_sheet(view: JobView) -> Table:
    """Everything a client may know of one job."""
    job, request, plan = view.job, view.job.request, view.job.plan
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    seed = f"{request.seed}" + ("" if request.seed_given else " (drawn)")
    rows = {
        "job": job.id,
        "state": job.state.value + (f": {job.error}" if job.error else ""),
        "prompt": request.prompt,
        "negative prompt": request.negative_prompt,
        "size · steps · guidance · seed": f"{request.size} · {request.steps} · {request.guidance:g} · {seed}",
        "model": view.model,
        "plan": f"{plan.source.value}, start after step {plan.start_step}: {plan.reason}",
        "degraded": "; ".join(plan.degraded),
        "steps run": str(view.steps_run),
        "attempts": str(job.attempt),
        "warnings": "; ".join(job.warnings),
        "picture": f"{view.picture_bytes} bytes, sha256 {view.picture_sha256}" if view.picture_bytes else "",
        "seconds": seconds_by_stage(view),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(value))
    return table


def seconds_by_stage(view: JobView) -> str:
    stages = ("embed", "predict", "plan", "accept", "queue", "fetch", "encode", "denoise", "decode", "store", "total")
    spent = [(stage, getattr(view.timings, f"{stage}_s")) for stage in stages]
    return " · ".join(f"{stage} {seconds:.4f}" for stage, seconds in spent if seconds)
