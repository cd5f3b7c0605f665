"""Batches of 512, 768 and 1024 pixels: all sizes in one batch against one batch per size (PatchedServe §8, Fig. 14).

    python -m bench.gpu.layouts
    python -m bench.gpu.layouts --mixes 50    # layout=auto on 50 random mixes too, its costs fitted on --fitted others
    python -m bench.gpu.layouts --tiny        # tiny models and sizes, on any machine: a check of the script

SDXL (patches) and SD 3 Medium (packed) with their true shapes and random weights; the prompts are random vectors. Each
round runs every layout once in random order, and medians count. For SDXL, one batch also runs with the stitcher's
operators one by one. `decision_us` is the time in which layout=auto decides. Without a CUDA device the command measures
nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest import mock

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table

if TYPE_CHECKING:
    from services.gpu_worker.families.pipeline import PipelineFamily
    from shared.domain.types import Size

GOAL = 1.3
"""Groups' seconds over those of one batch; the paper's 13 % less latency is 1.15."""
MODELS = ("sdxl", "sd3")
CALLS = 2000
SD3_MEDIUM = {
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "qk_norm": None,
}
"""Where SD 3 Medium's configuration differs from that of SD 3.5 Large."""


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[3, 6, 12], help="requests over three sizes")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each layout, after one more")
    parser.add_argument("--mixes", type=int, default=0, help="random mixes of several sizes for layout=auto")
    parser.add_argument("--fitted", type=int, default=50, help="random mixes that its costs are fitted on")
    parser.add_argument("--rows", type=int, default=8, help="most requests of a random mix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="tiny models, on the CPU if there is no GPU")
    asked = parser.parse_args(given)
    quiet()
    import torch

    from bench.layouts import choices, fitted_costs, print_choices

    if not torch.cuda.is_available() and not asked.tiny:
        raise SystemExit("bench.gpu.layouts: no CUDA device here: nothing was measured (--tiny checks the script)")
    on, device = machine(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures: dict[str, dict[str, Any]] = {}
    for name in asked.models:
        family, sizes = (tiny_family if asked.tiny else true_family)(name, device)
        with torch.inference_mode():
            rows = [measured(family, sizes, count, asked.rounds) for count in asked.batches]
            figures[name] = {"dtype": family.card.dtype, "sizes": [str(size) for size in sizes], "batches": rows}
            if asked.mixes:
                family.card = replace(family.card, sizes=replace(family.card.sizes, sizes=tuple(sizes)))
                costs = fitted_costs(family, asked, time.perf_counter)
                figures[name] |= {"costs": vars(costs), "auto": choices(family, costs, asked, time.perf_counter)}
                print_choices(costs, figures[name]["auto"])
        del family
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for name, found in figures.items():
        print(f"\n{name}: {', '.join(found['sizes'])}; goal: groups ÷ one batch ≥ {GOAL}\n")
        print(table(["requests", *found["batches"][0]["ms"], "groups ÷ one batch", "decision, µs"], _rows(found)))
    record("gpu_layouts", figures, settings_of(asked) | {"device": str(device)}, on=on, folder=asked.out)


def measured(family: PipelineFamily, sizes: Sequence[Size], requests: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds of a step of `requests` over these sizes in each layout, peak bytes, and the microseconds of
    a decision."""
    from bench.measuring.layout_arms import GROUPS, MIXED, equal_shares, in_turn, tasks_of

    tasks, draw = tasks_of(family, equal_shares(sizes, requests)), random.Random(0)
    arms = {"groups": GROUPS, "one batch": MIXED}
    with peaks(family.device) as peak_bytes:
        found = in_turn(family, tasks, arms, rounds, time.perf_counter, draw)
    if family.denoiser_name == "unet":
        with mock.patch("services.gpu_worker.engine.patches.stitcher.kernels_for", return_value=None):
            found["not fused"] = in_turn(family, tasks, {"": MIXED}, rounds, time.perf_counter, draw)[""]
    ms = {name: 1000 * median(each) for name, each in found.items()}
    return {
        "requests": requests,
        "ms": ms,
        "gain": ms["groups"] / ms["one batch"],
        "peak_bytes": peak_bytes[0],
        "decision_us": _decision_us(family, tasks),
        "all_s": found,
    }


def _decision_us(family: PipelineFamily, tasks: Sequence[Any]) -> float:
    from services.gpu_worker.engine.layout_choice import LayoutChoice
    from services.gpu_worker.engine.passes import passes_of, resolution_of
    from shared.models.layout_costs import LayoutCosts
    from shared.models.step_regression import mix_of

    choice = LayoutChoice(LayoutCosts("", "", (1.0,) * 4, (1.0,) * 4, 0.1, 0.0).ratio)
    kinds = [(resolution_of(task), passes_of(family, task)) for task in tasks]
    begun = time.perf_counter()
    for _ in range(CALLS):
        choice.together(mix_of(kinds))
    return 1e6 * (time.perf_counter() - begun) / CALLS


@contextmanager
def peaks(device: Any) -> Iterator[list[int]]:
    """Yield a list with the peak bytes of the block, once it has ended; 0 without CUDA."""
    import torch

    found = [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found[0] = torch.cuda.max_memory_allocated(device)


def true_family(name: str, device: Any) -> tuple[PipelineFamily, list[Size]]:
    """Build random weights of the published shape on the device, in the card's dtype, without text encoders."""
    import torch

    from bench.gpu.gpu_families import bare_pipeline, with_random_prompts
    from bench.gpu.gpu_shapes import SD35_LARGE, SHAPES, build
    from shared.domain.types import Size

    shape = SHAPES["sdxl" if name == "sdxl" else "sd-3.5-large"]
    if name == "sd3":
        shape = replace(shape, denoiser=(shape.denoiser[0], {**SD35_LARGE, **SD3_MEDIUM}))
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, shape.card.dtype))
    try:
        with device:
            denoiser, vae = build(shape.denoiser), build(shape.vae)
    finally:
        torch.set_default_dtype(before)
    pipeline = bare_pipeline(shape.pipeline, denoiser, vae, dict(shape.scheduler))
    family = with_random_prompts(shape.card, pipeline, device, shape.hidden, shape.pooled, layout="auto")
    return family, [Size(px, px) for px in (512, 768, 1024)]  # type: ignore[return-value]


def tiny_family(name: str, device: Any) -> tuple[PipelineFamily, list[Size]]:
    """Build the tiny random model of the family."""
    from bench.gpu.gpu_families import tiny_subject
    from shared.domain.types import Size

    family = tiny_subject(name, device, layout="auto").family
    return family, [Size(px, px) for px in (32, 48, 64)]  # type: ignore[return-value]


def _rows(found: dict[str, Any]) -> list[list[Any]]:
    return [
        [one["requests"], *one["ms"].values(), f"{one['gain']:.2f}", one["decision_us"]] for one in found["batches"]
    ]


if __name__ == "__main__":
    main()
