"""`afterimage train`: plan and simulate pipeline-parallel training without torch, and run fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from services.cli.display.words import wide
from services.cli.training.run import run
from services.cli.training.views import details, figures_of, systems_table
from shared.domain.errors import InvalidRequestError

if TYPE_CHECKING:  # numpy and the planner are imported when a command runs, not when --help is read
    from services.trainer.pipeline.costs.profile import Profile
    from services.trainer.pipeline.plans import Plan
    from services.trainer.pipeline.settings import PlanSettings

Optional = typer.Option
DEFAULT_OUT = Path("out/plan")
Json = Annotated[bool, Optional("--json", help="Print JSON instead.")]
SelfConditioning = Annotated[
    float | None,
    Optional("--self-conditioning", help="Share of the iterations with a second forward pass, 0 to 1."),
]
NoFill = Annotated[bool, Optional("--no-fill", help="Leave the bubbles empty; the frozen part runs before.")]
NoPartial = Annotated[bool, Optional("--no-partial-batches", help="Never split a frozen layer's batch.")]
MinimumBubble = Annotated[float | None, Optional(help="Shorter bubbles stay empty, in seconds (default 0.010).")]
Beam = Annotated[
    int | None,
    Optional(help="States that the filling keeps after each bubble (default 8); 1 is the paper's greedy way."),
]

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Fine-tune a checkpoint on captioned images, and plan pipeline-parallel training.\n\n"
        "A plan is made from a profile: a JSON file with the seconds of each layer and the speed of the links. "
        "`plan` and `simulate` predict; they train nothing and load no weights.\n\n"
        "[bold]Examples[/bold]\n\n"
        "  afterimage train run photos.toml\n\n"
        "  afterimage train plan --profile profile.json --batch 256 --devices 8"
    ),
)


app.command("run")(run)


@app.command("plan")
def plan(
    config: Annotated[Path | None, typer.Argument(help="Settings of the job (.toml), which options override.")] = None,
    profile: Annotated[Path | None, Optional(help="Profile of the model and the cluster (.json).")] = None,
    batch: Annotated[int | None, Optional(help="Samples of one iteration, over all devices (default 256).")] = None,
    devices: Annotated[int | None, Optional(help="Devices of the cluster (default 8).")] = None,
    self_conditioning: SelfConditioning = None,
    stages: Annotated[
        str | None, Optional(help="Numbers of stages to try, separated by commas; default: 2 to the group size.")
    ] = None,
    micro_batches: Annotated[
        str | None, Optional(help="Numbers of micro-batches to try, separated by commas; default: 1 to 32.")
    ] = None,
    group_sizes: Annotated[
        str | None, Optional(help="Devices of one pipeline to try, separated by commas; default: 2 to 8.")
    ] = None,
    any_replicas: Annotated[
        bool, Optional("--any-replicas", help="Let each stage have its own number of devices.")
    ] = False,
    device_memory_bytes: Annotated[
        float | None, Optional(help="Memory of one device; plans that need more are dropped.")
    ] = None,
    no_fill: NoFill = False,
    no_partial_batches: NoPartial = False,
    minimum_bubble_s: MinimumBubble = None,
    beam_width: Beam = None,
    out: Annotated[Path, Optional("--out", "-o", help="Folder for schedule.svg and plan.json.")] = DEFAULT_OUT,
    as_json: Json = False,
) -> None:
    """Find the fastest pipeline for a job, and compare it with data-parallel training.

    The search tries numbers of stages S, micro-batches M and devices D of a pipeline. For each it cuts the backbone
    into stages, plays the schedule and fills its bubbles. The table has the predicted time, the share of idle device
    time before and after filling, and the memory of the fullest device. Other rows have the same search without
    filling (as SPP), GPipe with two equal stages and four micro-batches, DDP and FSDP. A last line says whether
    a pipeline is worth it. schedule.svg shows what each device does at each time.

    [bold]Examples[/bold]

      afterimage train plan --profile profile.json --batch 256 --devices 8

      afterimage train plan job.toml --stages 2,4 --out out/job
    """
    from services.trainer.pipeline.comparison import as_json as whole
    from services.trainer.pipeline.comparison import compare
    from services.trainer.pipeline.settings import read_settings

    typed = {
        "profile": profile,
        "batch": batch,
        "devices": devices,
        "self_conditioning": self_conditioning,
        "stages": _counts("stages", stages),
        "micro_batches": _counts("micro-batches", micro_batches),
        "group_sizes": _counts("group-sizes", group_sizes),
        "device_memory_bytes": device_memory_bytes,
        "minimum_bubble_s": minimum_bubble_s,
        "beam_width": beam_width,
        "equal_replicas": False if any_replicas else None,
        "fill": False if no_fill else None,
        "partial_batches": False if no_partial_batches else None,
    }
    settings = read_settings(config, {name: value for name, value in typed.items() if value is not None})
    model = _profile(settings)
    found = compare(model, settings)
    content = whole(found, model)
    if as_json:
        typer.echo(json.dumps(content, indent=1))
        return
    console = wide()
    console.print(systems_table(found, console.width))
    for line in [*details(found.plan, model), found.verdict, *_written(found.plan, model, content, out)]:
        console.print(Text(line))


@app.command("simulate")
def simulate(
    config: Annotated[
        Path | None, typer.Argument(help="Settings of a job for `plan` (.toml), which options override.")
    ] = None,
    stages: Annotated[int | None, Optional(min=1, max=64, help="Number of stages S (default 4).")] = None,
    micro_batches: Annotated[
        int | None, Optional(min=1, max=1024, help="Number of micro-batches M (default 4).")
    ] = None,
    frozen_share: Annotated[
        float | None,
        Optional(min=0, max=100, help="Time of the frozen part over that of the trainable part, for equal layers."),
    ] = None,
    profile: Annotated[Path | None, Optional(help="Profile of the model and the cluster (.json) instead.")] = None,
    batch: Annotated[int | None, Optional(min=1, help="Samples of one iteration; with a profile only.")] = None,
    devices: Annotated[
        int | None,
        Optional(
            min=1, help="Devices of the pipeline (default: the file's, or one for each stage); with a profile only."
        ),
    ] = None,
    self_conditioning: SelfConditioning = None,
    no_fill: NoFill = False,
    no_partial_batches: NoPartial = False,
    minimum_bubble_s: MinimumBubble = None,
    beam_width: Beam = None,
    svg: Annotated[Path | None, Optional(help="File for the drawing of the schedule.")] = None,
    as_json: Json = False,
) -> None:
    """Play one schedule of S stages and M micro-batches, and print its bubbles.

    With --frozen-share all layers are equal, transfers are free, and one iteration of the trainable part takes a second
    of each device: the setting of Fig. 4 of DiffusionPipe. With --profile the layers have their profiled times.
    bubble_of_iteration is the idle share of all device time. bubble_of_frozen is the bubble time before filling, over
    the time of the frozen part. The JSON also has the table of actions and each bubble: start, end, idle devices, and
    the frozen layers that run in it. A file with one number in stages, micro_batches or group_sizes needs no option
    for it.

    [bold]Examples[/bold]

      afterimage train simulate --frozen-share 0.4384 --stages 4 --micro-batches 4 --no-fill --json

      afterimage train simulate --profile profile.json --batch 256 --stages 4 --micro-batches 8

      afterimage train simulate job.toml --stages 2 --micro-batches 8
    """
    from services.trainer.pipeline.comparison import plan_as_json
    from services.trainer.pipeline.costs.uniform import uniform_batch, uniform_profile
    from services.trainer.pipeline.plans import filled, make_plan
    from services.trainer.pipeline.search import directions
    from services.trainer.pipeline.settings import read_settings

    typed: dict[str, Any] = {
        "profile": profile,
        "batch": batch,
        "devices": devices,
        "self_conditioning": self_conditioning,
        "minimum_bubble_s": minimum_bubble_s,
        "beam_width": beam_width,
        "partial_batches": False if no_partial_batches else None,
        "fill": False if no_fill else None,
    }
    given = {name: value for name, value in typed.items() if value is not None}
    job = read_settings(config, given) if config is not None else None
    stages = stages or _only("stages", job, 4)
    micro_batches = micro_batches or _only("micro_batches", job, 4)
    if (frozen_share is None) == (profile is None and (job is None or job.profile is None)):
        raise InvalidRequestError("frozen-share", "give either --frozen-share or --profile")
    if frozen_share is None:
        settings = job or read_settings(None, {"devices": stages} | given)
        model = _profile(settings)
    else:
        if batch is not None or devices is not None:
            raise InvalidRequestError("batch", "--batch and --devices need a --profile; equal layers have no sizes")
        shape = {"batch": uniform_batch(stages, micro_batches), "devices": stages}
        settings = read_settings(config, given | shape)
        model = uniform_profile(frozen_share, stages, shape["batch"])
    group = _only("group_sizes", settings, settings.devices)
    made = [
        make_plan(model, way, settings, stages=stages, micro_batches=micro_batches, group=group)
        for way in directions(model, settings)
    ]
    found = [one for one in made if one is not None]
    if not found:
        raise InvalidRequestError(
            "stages",
            f"S must divide the devices and be at most the number of layers, and each micro-batch must divide over the "
            f"devices of a stage: batch {settings.batch}, devices {group}, M {micro_batches}",
            stages,
        )
    best = min(found, key=lambda one: one.seconds)
    shown = filled(best, model, settings) if settings.fill else best
    figures = figures_of(shown)
    if svg is not None:
        _write(svg, _drawn(shown, model), "svg")
    if as_json:
        typer.echo(json.dumps(figures | {"plan": plan_as_json(shown, model)}, indent=1))
        return
    console = wide()
    for name, value in figures.items():
        console.print(Text(f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}"))
    if svg is not None:
        console.print(Text(f"wrote {svg}"))


def _written(one: Plan | None, model: Profile, content: dict[str, Any], out: Path) -> list[str]:
    """Write the files of a plan, and return a line for each."""
    _write(out / "plan.json", json.dumps(content, indent=1) + "\n")
    if one is None:
        return [f"wrote {out / 'plan.json'}"]
    _write(out / "schedule.svg", _drawn(one, model))
    return [f"wrote {out / 'plan.json'} and {out / 'schedule.svg'}"]


def _drawn(one: Plan, model: Profile) -> str:
    from services.trainer.pipeline.drawing import draw

    return draw(one, model.frozen)


def _profile(settings: PlanSettings) -> Profile:
    from services.trainer.pipeline.costs.profile_file import read_profile

    if settings.profile is None:
        raise InvalidRequestError("profile", "name a profile with --profile, or in the config file")
    return read_profile(settings.profile)


def _only(field: str, settings: PlanSettings | None, default: int) -> int:
    """Return the one number that the settings have for a field; the default without any."""
    found: tuple[int, ...] = () if settings is None else getattr(settings, field)
    if len(found) > 1:
        raise InvalidRequestError(field, f"a simulation needs one number; the file has {', '.join(map(str, found))}")
    return found[0] if found else default


def _counts(field: str, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in a list separated by commas."""
    if text is None:
        return None
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise InvalidRequestError(field, "must be whole numbers separated by commas, as in 2,4", text) from None


def _write(path: Path, text: str, field: str = "out") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(field, f"cannot write {path}: {error.strerror}") from error
