"""One batch per size against one batch of all sizes, and the choice between them (PatchedServe §4, Fig. 14's shape).

    python -m bench.layouts                      # bundled large: groups and patches
    python -m bench.layouts --model random-sd3   # a random transformer of width 384: groups and packed
    python -m bench.layouts --fitted 12 --mixes 2 --rounds 1 --batches 3 --out out/quick    # does the command work?

Three parts, all on one thread in seconds of processor time, which other work on the machine disturbs less:

- costs: random mixes of sizes, in both layouts in turn, fit the cost model as `afterimage profile --mixes` does;
- auto: other mixes of several sizes; each round runs groups, one batch and layout=auto in random order;
- batches: 3, 6, 9 and 12 requests over three sizes, and the operators on which each layout spends its time.

    python -m bench.layouts --steps 50           # another measurement: how far the latents of the two layouts are apart
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from shared.runtime.progress import Remaining

if TYPE_CHECKING:
    from services.gpu_worker.engine.patches.auto_layout import Choice
    from services.gpu_worker.families.pipeline import PipelineFamily
    from shared.models.layout_costs import LayoutCosts

RANDOM_SD3 = "random-sd3"
WIDTH, LAYERS, HEADS = 384, 2, 6
"""Of the random transformer; an image of 512 pixels has 256 tokens of 2×2 latent cells of 16 pixels."""
CALLS = 2000
KINDS = {
    "convolution": ("mkldnn_convolution", "thnn_conv2d", "_slow_conv2d_forward", "convolution"),
    "attention": ("_scaled_dot_product_flash_attention_for_cpu", "bmm", "_softmax"),
    "linear layers": ("addmm", "mm"),
    "copies": ("index_select", "index_copy_", "copy_", "cat", "fill_", "index", "clone", "repeat_interleave"),
}
"""Operators of each kind, without `aten::`; all others are arithmetic on single values, and norms."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large", help=f"a model, or {RANDOM_SD3}")
    parser.add_argument("--fitted", type=int, default=100, help="random mixes that the costs are fitted on")
    parser.add_argument("--mixes", type=int, default=50, help="other mixes, of several sizes, for layout=auto")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each layout and mix")
    parser.add_argument("--rows", type=int, default=8, help="most requests of a random mix")
    parser.add_argument("--batches", type=int, nargs="+", default=[3, 6, 9, 12], help="requests over three sizes")
    parser.add_argument("--steps", type=int, default=0, help="compare the latents after this many steps, no times")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    quiet()
    import torch

    torch.set_num_threads(1)
    on = machine()
    family = _family(options.model)
    if options.steps:
        apart = _apart(family, options.steps)
        print(table(["size", "largest difference", "… in standard deviations"], [[k, *v] for k, v in apart.items()]))
        record("layouts_steps", {"apart": apart}, settings_of(options), on=on, folder=options.out)
        return
    with torch.inference_mode():
        costs = fitted_costs(family, options, time.process_time)
        auto = choices(family, costs, options, time.process_time)
        batches = [_batch(family, count, options) for count in options.batches]
    print_choices(costs, auto)
    print(table(["requests", "groups, s", "one batch, s", "ratio"], [_line(one) for one in batches]))
    for one in batches:
        print(f"\n{one['requests']} requests, ms of a step\n")
        print(table(["operators", "groups", "one batch"], [[k, *v.values()] for k, v in one["ms"].items()]))
    figures = {"costs": vars(costs), "auto": auto, "batches": batches, "load_after": machine()["load_1min"]}
    name = "layouts_random_sd3" if options.model == RANDOM_SD3 else "layouts"
    record(name, figures, settings_of(options), on=on, folder=options.out)


def _family(name: str) -> PipelineFamily:
    from services.gpu_worker.families import load_family
    from services.gpu_worker.families.pipeline import PipelineFamily
    from services.gpu_worker.models.measuring import warm_up
    from shared.models import find_card

    family = random_sd3() if name == RANDOM_SD3 else load_family(find_card(name), layout="auto")
    assert isinstance(family, PipelineFamily)
    warm_up(family)
    return family


def random_sd3() -> Any:
    """Build an SD 3 of width 384 with random weights, for images of 512, 640 and 768 pixels: 256 to 576 tokens."""
    import torch

    from bench.gpu.gpu_families import bare_pipeline, with_random_prompts
    from bench.gpu.gpu_shapes import KL16, SD35_LARGE, build
    from shared.domain.types import Size
    from shared.models import find_card

    torch.manual_seed(0)
    made = {"num_layers": LAYERS, "num_attention_heads": HEADS, "caption_projection_dim": WIDTH}
    text = {"joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH}
    denoiser = build(("SD3Transformer2DModel", {**SD35_LARGE, **made, **text}))
    small = {"block_out_channels": (8,) * 5, "norm_num_groups": 4, "layers_per_block": 1}
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 5, "up_block_types": ("UpDecoderBlock2D",) * 5}
    vae = build(("AutoencoderKL", {**KL16, **small, **kinds}))
    sizes = tuple(Size(px, px) for px in (512, 640, 768))
    card = find_card("stabilityai/stable-diffusion-3.5-large")
    rule = replace(card.sizes, sizes=sizes)
    card = replace(card, name=RANDOM_SD3, dtype="float32", default_size=sizes[0], sizes=rule, vae_scale=16)
    pipeline = bare_pipeline("StableDiffusion3Pipeline", denoiser, vae, {"shift": 3.0})
    return with_random_prompts(card, pipeline, torch.device("cpu"), (77, WIDTH), WIDTH, layout="auto")


def fitted_costs(family: PipelineFamily, options: argparse.Namespace, clock: Callable[[], float]) -> LayoutCosts:
    """Measure `options.fitted` random mixes of `options.rows` requests at most in both layouts, and fit the costs.

    clock: seconds. Raises SystemExit where too few of the mixes have several sizes."""
    from services.cli.profiles.layouts import fit_costs, measure_both
    from services.cli.profiles.mixes import random_tasks
    from services.gpu_worker.families import mixed_layout

    draw = random.Random(options.seed)
    mixes = [random_tasks(family.card, options.rows, draw) for _ in range(options.fitted)]
    several = [tasks for tasks in mixes if len({task.size for task in tasks}) > 1]
    left, measured = Remaining("mixes for the costs", len(several)), []
    for tasks in several:
        measured.append(measure_both(family, tasks, clock))
        left.advance()
    costs = fit_costs(measured, mixed_layout(family.card), family.device.type, options.seed)
    if costs is None:
        raise SystemExit(f"bench.layouts: --fitted: must give mixes of several sizes (got {options.fitted})")
    return costs


def choices(
    family: PipelineFamily, costs: LayoutCosts, options: argparse.Namespace, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return seconds of each mix by layout, and each policy's total and worst mix against the best choices."""
    from bench.measuring.layout_arms import GROUPS, MIXED, in_turn
    from services.cli.profiles.mixes import random_tasks
    from services.gpu_worker.engine.layout_choice import LayoutChoice
    from services.gpu_worker.engine.passes import passes_of, resolution_of
    from shared.models.step_regression import mix_of

    choice, draw = LayoutChoice(costs.ratio, costs.error), random.Random(options.seed + 1)
    arms: dict[str, Choice] = {"groups": GROUPS, "one batch": MIXED, "auto": choice}
    rows: list[dict[str, Any]] = []
    left = Remaining("mixes for auto", options.mixes)
    while len(rows) < options.mixes:
        tasks = random_tasks(family.card, options.rows, draw)
        mix = mix_of((resolution_of(task), passes_of(family, task)) for task in tasks)
        if len(mix) > 1:
            found = in_turn(family, tasks, arms, options.rounds, clock, draw)
            rows.append({"mix": mix, "all": found, **{name: median(each) for name, each in found.items()}})
            rows[-1]["chosen"] = "one batch" if choice.together(mix) else "groups"
            left.advance()
    best = [min(row["groups"], row["one batch"]) for row in rows]
    policies = {name: [row[name] for row in rows] for name in arms}
    policies["auto, by its layout's own steps"] = [row[row["chosen"]] for row in rows]
    ratios = {name: [a / b for a, b in zip(own, best, strict=True)] for name, own in policies.items()}
    begun = time.perf_counter()
    for number in range(CALLS):
        choice.together(rows[number % len(rows)]["mix"])
    return {
        "total": {name: sum(own) / sum(best) for name, own in policies.items()},
        "worst": {name: max(own) for name, own in ratios.items()},
        "off_by_15": sum(one > 1.15 for one in ratios["auto"]),
        "one_batch_chosen": sum(row["chosen"] == "one batch" for row in rows),
        "one_batch_faster": sum(row["one batch"] < row["groups"] for row in rows),
        "decision_us": 1e6 * (time.perf_counter() - begun) / CALLS,
        "mixes": rows,
    }


def print_choices(costs: LayoutCosts, auto: Mapping[str, Any]) -> None:
    print(f"\ngroups faster in {costs.groups_won:.0%} of the mixes; error of the ratio, p95: {costs.error:.1%}\n")
    print(table(["always", "total, best choices = 1", "worst mix"], _rows(auto)))
    print(f"\none decision: {auto['decision_us']:.1f} µs; 1.15 times the best or more: {auto['off_by_15']} mixes\n")


def _batch(family: PipelineFamily, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a step of `count` requests over three sizes in both layouts, and ms by operators."""
    from bench.measuring.layout_arms import GROUPS, MIXED, equal_shares, in_turn, tasks_of
    from services.cli.profiles.mixes import profiled_sizes

    sizes = sorted(profiled_sizes(family.card), key=lambda size: size.width * size.height)
    three = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    tasks = tasks_of(family, equal_shares(three, count))
    arms = {"groups": GROUPS, "one batch": MIXED}
    found = in_turn(family, tasks, arms, options.rounds, time.process_time, random.Random(options.seed))
    seconds = {name: median(each) for name, each in found.items()}
    shares = {name: _shares(family, tasks, arm) for name, arm in arms.items()}
    kinds = [*KINDS, "norms and arithmetic"]
    ms = {kind: {name: 1000 * seconds[name] * shares[name].get(kind, 0.0) for name in arms} for kind in kinds}
    spread = {name: [quantile(each, 0.0), quantile(each, 1.0)] for name, each in found.items()}
    return {"requests": count, "seconds": seconds, "spread": spread, "ms": ms}


def _apart(family: PipelineFamily, steps: int) -> dict[str, list[float]]:
    """Return for each size the largest difference between the latent of a batch of all sizes and of a run of its own,
    as a number and in standard deviations of the latent."""
    import numpy as np

    from bench.measuring.layout_arms import MIXED, tasks_of
    from services.cli.profiles.mixes import profiled_sizes
    from services.gpu_worker.engine.engine import Engine
    from services.gpu_worker.engine.events import Finished

    assert family.auto is not None
    family.auto.choice = MIXED
    tasks = [replace(task, steps=steps) for task in tasks_of(family, profiled_sizes(family.card))]
    latents = []
    for batch in [tasks, *([task] for task in tasks)]:  # one size alone runs whole
        engine = Engine({family.card.name: family}, max_rows=len(batch), tell_every_s=float("inf"))
        for task in batch:
            engine.submit(task)
        while not engine.idle:
            latents += [(one.id, one.latent) for one in engine.step() if isinstance(one, Finished)]
    together, alone = dict(latents[: len(tasks)]), dict(latents[len(tasks) :])
    apart = {task: float(np.abs(together[task] - alone[task]).max()) for task in alone}
    return {str(task.size): [apart[task.id], apart[task.id] / float(alone[task.id].std())] for task in tasks}


def _shares(family: PipelineFamily, tasks: Sequence[Any], arm: Any) -> dict[str, float]:
    """Return the share of a step's time by kind of operator (torch's profiler, time in the operator itself)."""
    import torch

    from services.gpu_worker.engine.row_start import make_row

    assert family.auto is not None
    before, family.auto.choice = family.auto.choice, arm
    rows = [make_row(family, task) for task in tasks]
    family.step(rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        family.step(rows)
    family.auto.choice = before
    kind_of = {f"aten::{name}": kind for kind, names in KINDS.items() for name in names}
    taken: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = kind_of.get(event.key, "norms and arithmetic")
        taken[kind] = taken.get(kind, 0.0) + event.self_cpu_time_total
    return {kind: own / sum(taken.values()) for kind, own in taken.items()}


def _rows(auto: Mapping[str, Any]) -> list[list[Any]]:
    return [[name, f"{auto['total'][name]:.3f}", f"{auto['worst'][name]:.2f}"] for name in auto["total"]]


def _line(one: dict[str, Any]) -> list[Any]:
    groups, mixed = one["seconds"].values()
    return [one["requests"], groups, mixed, f"{mixed / groups:.2f}"]


if __name__ == "__main__":
    main()
