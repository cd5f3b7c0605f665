"""Plans and jobs as sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

from services.cli.display.sources import chosen_model, chosen_pair, chosen_prompt, parts, relation
from services.cli.display.tables import WIDE, Column, fitted
from shared.client import JobView, Picture
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.forecasts import format_s
from shared.domain.plan_rules import ANOTHER
from shared.domain.types import Candidate, Job, JobState, Modality, Plan, PlanSource, Size


def wide() -> Console:
    """Return a console that wraps at the terminal's width, and does not wrap in pipes and logs."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


class ProgressBars(Progress):
    """A progress bar that disappears at its end, and prints nothing without a terminal, not even an empty line."""

    def __init__(self, *columns: str | ProgressColumn, console: Console) -> None:
        super().__init__(*columns, console=console, transient=True)

    def start(self) -> None:
        if self.console.is_interactive:
            super().start()

    def stop(self) -> None:
        if self.console.is_interactive:
            super().stop()


def dimensions(job: Job, scale: int = 1) -> str:
    """Return the size of a job's image, 64x64, or of its clip, 64x64, 16 frames. scale: pixels per generated pixel."""
    size = Size(job.request.size.width * scale, job.request.size.height * scale)
    return f"{size}, {counted(job.frames, 'frame')}" if job.request.modality is Modality.VIDEO else str(size)


def kind_of(view: JobView) -> str:
    """Return the noun for a job's result."""
    return view.job.request.modality.noun


def where_it_started(view: JobView) -> str:
    """Return one sentence: the start of the image, and the steps saved."""
    plan = view.job.plan
    seconds = f" in {view.timings.total_s:.2f} s" if view.timings.total_s else ""
    if plan.source is PlanSource.EXACT:
        return f"Exact repeat: the stored {kind_of(view)} was returned{seconds}, no step run."
    if plan.source is PlanSource.NOISE:
        return f"Started from noise{_continued(view)}: {counted(view.steps_run, 'step')}{seconds}{_resumed(view)}."
    run = f"{counted(view.steps_run, 'step')}{seconds}{_saved(view)}{_skipped(view)}{_resumed(view)}"
    return f"Started after {_start(view)}: {run}."


def where_it_would_start(view: JobView) -> str:
    """Return one sentence about a dry run: the start of the image, and its steps."""
    plan, steps = view.job.plan, view.job.plan.run_steps(view.job.request.steps)
    if plan.source is PlanSource.EXACT:
        return f"Would be an exact repeat: the stored {kind_of(view)} is returned, no step run."
    if plan.source is PlanSource.NOISE:
        return f"Would start from noise{_continued(view)}: {counted(steps, 'step')} with {view.model}."
    left = counted(steps - plan.start_step, "step")
    return f"Would start after {_start(view)}: {left} with {view.model}{_saved(view)}."


def _saved(view: JobView) -> str:
    """Return the steps that the cache saved; empty where the client named the start."""
    named = view.job.request.named_job or view.job.plan.source is PlanSource.UPLOAD
    return "" if named else f", {view.job.plan.start_step} saved"


def _skipped(view: JobView) -> str:
    """Return the share of the steps' work that took earlier outputs of blocks instead; empty without."""
    if view.job.plan.region_until and view.steps_run and not view.skipped:
        return ", no patch kept"
    return f", {view.skipped:.0%} of their work skipped" if view.skipped else ""


def _continued(view: JobView) -> str:
    """Return after which frames a clip goes on; empty for a run without finished frames."""
    lead = view.job.plan.lead
    if lead is None:
        return ""
    return f" after {counted(lead.frames, 'frame')} of job {lead.job_id}" if lead.job_id else " after the given image"


def _start(view: JobView) -> str:
    """Return the start step of a hit and what it starts from."""
    plan, steps = view.job.plan, view.job.plan.run_steps(view.job.request.steps)
    source, model = chosen_prompt(plan), chosen_model(plan)
    if plan.source is PlanSource.UPLOAD:
        return f"step {plan.start_step} of {steps} from the given image"
    if named := view.job.request.named_job:
        return f"step {plan.start_step} of {steps} from job {named} (“{source}”)"
    if (pair := chosen_pair(plan)) is not None:
        return f"step {plan.start_step} of {steps} from {pair}"
    said = f" from “{source}”" if source else ""
    if plan.source is PlanSource.IMAGE:
        said = f" from {model or 'another model'}'s image{f' of “{source}”' if source else ''}, by {view.model}"
    return f"step {plan.start_step} of {steps}{said} (similarity {plan.similarity:.3f})"


def counted(number: int, what: str) -> str:
    """Return number and noun, in the plural unless the number is 1: 1 step, 2 steps; 1 entry, 2 entries."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def sized(number: int) -> str:
    """Return a number of bytes in its largest unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number = number / 1024  # type: ignore[assignment]  # a size in the next unit
    return f"{number:.1f} GiB"


def hint(plan: Plan) -> str:
    """Return what to try when a hit's image looks too much like its start; empty for other plans."""
    if plan.source not in (PlanSource.LATENT, PlanSource.STITCHED) or plan.fresh_noise:
        return ""
    return "For a more different image: --variation new, or --fresh-noise 1 for other details."


def keep_picture(
    picture: Picture, path: Path, where: str = "", save: Callable[[], None] | None = None, field: str = "out"
) -> Path | None:
    """Write the image file in the format of its ending; return the folder that was created for it, or None.

    Raises AfterimageError with a command that writes the file again. where: the options that find its job. save: what
    writes the file; None: the image's own `save`. field: option that names the file.
    """
    folder = path.parent
    made = None if folder.is_dir() else folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save() if save else picture.save(path)
    except (OSError, ValueError, AfterimageError) as error:
        why = getattr(error, "strerror", None) or error
        kind, also = (kind_of(picture), "") if field == "out" else (field, f" --{field} FILE")
        again = f"fetch the {kind} again: afterimage jobs show {picture.job.id} --out FILE{also}{where}"
        raise AfterimageError(f"{field}: cannot write {path} ({why}); {again}") from error
    return made


def raise_all(errors: Sequence[AfterimageError]) -> None:
    """Raise the one error, or an error with the messages of all."""
    if errors:
        raise errors[0] if len(errors) == 1 else AfterimageError("; ".join(map(str, errors)))


def made_folder(out: Path) -> None:
    """Create the folder before long work starts; raise InvalidRequestError when that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequestError("out", f"must be a folder ({error.strerror})", out) from error


def candidates_table(plan: Plan, width: int = WIDE) -> Table:
    """Return a table of the planner's candidates, best first, with the reason of each choice."""
    columns = (
        Column(""),
        Column("prompt", least=12),
        Column("by", leave=2),
        Column("kind", leave=1),
        *([Column("relation", leave=3)] if any(one.relation for one in plan.candidates) else []),
        *(Column(name, right=True) for name in ("similarity", "K allowed", "K there")),
        Column("why", least=12),
    )
    rows = [
        (
            "→" if one.chosen else "",
            Text(" + ".join(filter(None, (one.prompt or one.entry_id or ANOTHER, _background(one))))),
            one.model,
            one.kind,
            *([one.relation] if any(other.relation for other in plan.candidates) else []),
            f"{one.similarity:.3f}",
            _step(one.allowed_step, one.steps),
            _step(one.start_step, one.steps),
            Text(one.reason),
        )
        for one in plan.candidates
    ]
    return fitted(columns, rows, width, title="Candidates of the plan")


def _background(pair: Candidate) -> str:
    """Return the background's prompt of a pair; empty for other candidates."""
    return (pair.background_prompt or pair.background_id or ANOTHER) if pair.kind == "pair" else ""


def _step(step: int, steps: int) -> str:
    """Format K of a candidate, with T where T is not the request's."""
    return f"{step}{f'/{steps}' if steps else ''}" if step else "–"


def jobs_table(views: list[JobView], width: int = WIDE) -> Table:
    """Return a table with one row per job and its whole id, and the reason of each job that ended without an image."""
    ended_badly = any(view.job.error for view in views)
    columns = (
        Column("job"),
        Column("state"),
        Column("created", leave=7),
        Column("source", leave=4),
        Column("start K", leave=3, right=True),
        Column("steps run", leave=5, right=True),
        Column("seconds", leave=6, right=True),
        Column("prompt", least=12, leave=2, one_line=True),
        *([Column("because", least=16, leave=1)] if ended_badly else []),
    )
    rows = [
        (
            view.job.id,
            view.job.state.value,
            datetime.fromtimestamp(view.job.created_at).strftime("%m-%d %H:%M:%S"),
            view.job.plan.source.value,
            f"{view.job.plan.start_step}/{view.job.plan.run_steps(view.job.request.steps)}",
            str(view.steps_run),
            f"{view.timings.total_s:.2f}" if view.timings.total_s else "",
            Text(view.job.request.prompt),
            *([Text(view.job.error)] if ended_badly else []),
        )
        for view in views
    ]
    return fitted(columns, rows, width)


def job_sheet(view: JobView) -> Table:
    """Return a table of all properties of one job that a client may see."""
    job, request, plan = view.job, view.job.request, view.job.plan
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    seed = f"{request.seed}" + ("" if request.seed_given else " (random)")
    total = plan.run_steps(request.steps)
    own = "" if total == request.steps else f" of {total}"
    steps = f"{total} (auto)" if request.steps_auto else f"{request.steps}"
    rows = {
        "job": job.id,
        "state": job.state.value + (f": {job.error}" if job.error else ""),
        "prompt": request.prompt,
        "negative prompt": request.negative_prompt,
        "size · steps · guidance · seed": f"{dimensions(job)} · {steps} · {request.guidance:g} · {seed}",
        "model": view.model,
        "from": f"job {request.from_job}, strength {request.strength:g}" if request.from_job else "",
        "continues": f"job {request.continue_job}, strength {request.strength:g}" if request.continue_job else "",
        "plan": f"{plan.source.value}, start after step {plan.start_step}{own}: {plan.reason}",
        "parts": parts(plan),
        "relation": relation(plan),
        "degraded": "; ".join(plan.degraded),
        "steps run": f"{view.steps_run}{_resumed(view)}{_skipped(view)}",
        "attempts": str(job.attempt),
        "deadline": deadline(job),
        "warnings": "; ".join(job.warnings),
        kind_of(view): f"{view.picture_bytes} bytes, sha256 {view.picture_sha256}" if view.picture_bytes else "",
        "seconds": seconds_by_stage(view),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(value))
    return table


def deadline(job: Job) -> str:
    """Return the deadline with its class, the predicted finish, and whether it was met; empty without a deadline."""
    request = job.request
    if request.deadline_s is None:
        return ""
    said = [format_s(request.deadline_s) + (f" ({request.slo})" if request.slo else "")]
    if job.predicted_s:
        said.append(f"predicted {format_s(job.predicted_s)}")
    if job.plan.for_deadline:
        another = job.plan.for_deadline.replace("steps", "number of steps")
        said.append(f"planned with another {another}")
    if job.deadline_met is not None:
        said.append("met" if job.deadline_met else "missed")
    return ", ".join(said)


def _resumed(view: JobView) -> str:
    """Return the step at which the last attempt resumed from a checkpoint; empty when it began as planned."""
    job, steps = view.job, view.job.plan.run_steps(view.job.request.steps)
    if job.state is not JobState.SUCCEEDED or job.plan.source is PlanSource.EXACT or job.attempt < 2:
        return ""
    after = steps - view.steps_run
    return f", resumed after step {after} of {steps}" if after > job.plan.start_step else ""


def seconds_by_stage(view: JobView) -> str:
    stages = (
        "extract",
        "embed",
        "predict",
        "plan",
        "accept",
        "queue",
        "fetch",
        "encode",
        "denoise",
        "decode",
        "store",
        "total",
    )
    spent = [(stage, getattr(view.timings, f"{stage}_s")) for stage in stages]
    return " · ".join(f"{stage} {seconds:.4f}" for stage, seconds in spent if seconds)
