"""Speed of the real model families on a GPU: steps per second by batch, memory, and the cost of switching models.

    python -m bench.gpu.gpu_families --models sd-3.5-large,sd-3.5-large-turbo,sdxl,sana-1.6b
    python -m bench.gpu.gpu_families --tiny            # the same on tiny models, on any machine: a check of the script

Weights are random, with the true shapes: speed and memory need no trained weights. Prompts are random vectors of the
true shapes, so no step runs a text encoder. Text encoders are built for the memory and for the switch. The engine calls
the families' own steps, with the guidance of the model's card. Without a CUDA device the command prints a message and
measures nothing.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table

if TYPE_CHECKING:
    import torch

    from services.gpu_worker.families import Family
    from shared.models import ModelCard

STEPS = {"sd-3.5-large-turbo": 10}
"""Steps per image of the models that do not use 50 (MoDM §6). Seconds per image are computed with these steps."""
MODELS = "sd-3.5-large,sd-3.5-large-turbo,sdxl,sana-1.6b"
TINY = "sdxl,sd3,sana"


@dataclass(frozen=True)
class Subject:
    """One model under measurement: a family without text encoders, and the text encoders beside it."""

    card: ModelCard
    family: Family
    text: list[torch.nn.Module]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", default="", help=f"names of bench/gpu/gpu_shapes.py; default: {MODELS}")
    parser.add_argument("--batches", default="1,2,4,8,16", help="rows that share a step")
    parser.add_argument("--measured", type=int, default=8, help="timed steps per batch, after two warm-up steps")
    parser.add_argument("--rounds", type=int, default=3, help="timed switches; the median is reported")
    parser.add_argument("--tiny", action="store_true", help="use tiny models, on the CPU if there is no GPU")
    options = parser.parse_args()
    quiet()
    import torch

    if not torch.cuda.is_available() and not options.tiny:
        raise SystemExit("bench.gpu.gpu_families: no CUDA device here: nothing was measured (--tiny checks the script)")
    measure(options, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def measure(options: argparse.Namespace, device: torch.device) -> None:
    on = machine()
    batches = [int(rows) for rows in options.batches.split(",")]
    names = [name for name in (options.models or (TINY if options.tiny else MODELS)).split(",") if name]
    figures: dict[str, Any] = {}
    for name in names:
        subject = tiny_subject(name, device) if options.tiny else true_subject(name, device)
        figures[name] = measure_one(name, subject, batches, options.measured, options.rounds)
        del subject
        _emptied()
    for name in names:
        print(f"\n{name} at {figures[name]['size']}, T = {figures[name]['steps']}, {figures[name]['dtype']}\n")
        print(_table(figures[name]))
    settings = {key: value for key, value in vars(options).items() if key != "out"} | {"device": str(device)}
    record("gpu_families", figures, settings, on=on, folder=options.out)


def measure_one(name: str, subject: Subject, batches: list[int], steps: int, rounds: int) -> dict[str, Any]:
    """Return one model's memory, seconds per step at every batch, seconds per decoded image, and seconds of a
    switch."""
    card, total = subject.card, STEPS.get(name, 50)
    found: dict[str, Any] = {
        "size": str(card.default_size),
        "dtype": card.dtype,
        "guidance": card.default_guidance,
        "steps": total,
        "weights_bytes": subject.family.memory_bytes,
        "text_encoder_bytes": sum(_bytes(module) for module in subject.text),
        "batches": {},
    }
    for rows in batches:
        found["batches"][str(rows)] = _batch(subject, rows, steps, total)
        if "out_of_memory" in found["batches"][str(rows)]:
            break
    return found | {"switch": _switch(subject, rounds)}


def _batch(subject: Subject, rows: int, steps: int, total: int) -> dict[str, Any]:
    """Return seconds per step of `rows` requests, seconds per decoded image, and peak memory with the text encoders
    loaded."""
    import torch

    family = subject.family
    _emptied(peak=True)
    try:
        with torch.inference_mode():
            taken, decode_s = _timed(family, rows, steps)
    except torch.OutOfMemoryError as error:
        return {"out_of_memory": str(error).partition("\n")[0]}
    step_s = quantile(taken[2:], 0.5)
    return {
        "step_s": step_s,
        "row_steps_per_s": rows / step_s,
        "decode_s": decode_s,
        "pictures_per_min": 60 * rows / (total * step_s + rows * decode_s),
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        "all_step_s": taken,
    }


def _timed(family: Family, count: int, steps: int) -> tuple[list[float], float]:
    """Return the seconds of every step after two warm-up steps, and of the second decoded image."""
    from services.gpu_worker.engine.row_start import make_row
    from services.gpu_worker.engine.rows import Task

    card, taken = family.card, []
    tasks = [
        Task(str(number), card.name, "random", card.default_size, steps + 2, card.default_guidance, seed=number)
        for number in range(count)
    ]
    rows = [make_row(family, task) for task in tasks]
    for _ in range(steps + 2):
        begun = time.perf_counter()
        stepped = family.step(rows)
        _waited(family)
        taken.append(time.perf_counter() - begun)
        for row, new in zip(rows, stepped, strict=True):
            row.latent, row.done = new.latent, row.done + 1
    family.decode(rows[0].latent)
    begun = time.perf_counter()
    family.decode(rows[0].latent)
    return taken, time.perf_counter() - begun


def _switch(subject: Subject, rounds: int) -> dict[str, Any]:
    """Return the seconds to move the model with its text encoders to the machine's memory and back."""
    import torch

    family: Any = subject.family
    parts = [family.denoiser, family.pipeline.vae, *subject.text]
    moved: dict[str, list[float]] = {"out_s": [], "in_s": []}
    for _ in range(rounds):
        for way, device in (("out_s", torch.device("cpu")), ("in_s", family.device)):
            begun = time.perf_counter()
            for part in parts:
                part.to(device)
            _waited(family)
            moved[way].append(time.perf_counter() - begun)
    return {way: quantile(seconds, 0.5) for way, seconds in moved.items()} | {"all": moved}


def true_subject(name: str, device: torch.device) -> Subject:
    """Build random weights of the published shapes on the device, in the card's dtype."""
    import torch

    from bench.gpu.gpu_shapes import SHAPES, build, build_text_encoder

    if name not in SHAPES:
        raise SystemExit(f"models: {name!r} is none of {', '.join(SHAPES)}")
    shape = SHAPES[name]
    card = shape.card
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, card.dtype))
    try:
        with device:
            denoiser, vae = build(shape.denoiser), build(shape.vae)
            text = [build_text_encoder(encoder) for encoder in shape.text]
    finally:
        torch.set_default_dtype(before)
    pipeline = bare_pipeline(shape.pipeline, denoiser, vae, dict(shape.scheduler))
    return Subject(card, with_random_prompts(card, pipeline, device, shape.hidden, shape.pooled), text)


def tiny_subject(name: str, device: torch.device, **placed: Any) -> Subject:
    """Build a subject from a tiny random checkpoint; placed: further keywords of PipelineFamily."""
    from shared.domain.types import Size
    from shared.models import ModelCard
    from shared.models.checkpoint import KINDS
    from tests import tiny_families, tiny_parts

    if name not in tiny_families.FAMILIES:
        raise SystemExit(f"models: {name!r} is none of {', '.join(tiny_families.FAMILIES)}")
    made = tiny_families.FAMILIES[name]()
    kind = KINDS[type(made).__name__]
    denoiser = getattr(made, kind.denoiser)
    card = ModelCard(name=name, family=kind.family, sampler=kind.sampler, default_size=Size(64, 64))
    pipeline = bare_pipeline(type(made).__name__, denoiser, made.vae, dict(made.scheduler.config))
    width = 2 * tiny_parts.WIDTH if name == "sdxl" else tiny_parts.WIDTH
    pooled = 0 if name == "sana" else tiny_parts.WIDTH
    text = [part for part_name, part in made.components.items() if part_name.startswith("text_encoder") and part]
    return Subject(card, with_random_prompts(card, pipeline, device, (8, width), pooled, **placed), text)


def bare_pipeline(name: str, denoiser: Any, vae: Any, scheduler: dict[str, Any]) -> Any:
    """Build a pipeline of the named class without tokenizers and text encoders."""
    import diffusers

    kind = getattr(diffusers, name)
    parts = dict.fromkeys((part for part in kind.__init__.__annotations__ if part != "return"), None)
    parts |= {"unet" if "unet" in parts else "transformer": denoiser, "vae": vae}
    if "unet" in parts:
        parts["scheduler"] = diffusers.DDIMScheduler(steps_offset=1)
        parts |= {"force_zeros_for_empty_prompt": True, "add_watermarker": False}
    elif scheduler.get("flow_shift"):
        parts["scheduler"] = diffusers.DPMSolverMultistepScheduler(**scheduler)
    else:
        parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(**scheduler)
    return kind(**parts)


def with_random_prompts(
    card: ModelCard, pipeline: Any, device: torch.device, hidden: tuple[int, int], pooled: int, **placed: Any
) -> Family:
    """Build the card's family over the pipeline; each encoded prompt is a random vector of the right shape.

    placed: further keywords of PipelineFamily.
    """
    from importlib import import_module

    import torch

    from services.gpu_worker.engine.rows import PromptEncoding
    from services.gpu_worker.families import MODULES
    from services.gpu_worker.families.pipeline import PipelineFamily

    module = import_module(MODULES[card.family])
    (kind,) = [found for found in vars(module).values() if _is_family(found, module.__name__, PipelineFamily)]

    def random(self: Any, prompt: str, negative: bool) -> PromptEncoding:
        made = {"device": device, "dtype": self._dtype}
        mask = torch.ones(hidden[0], device=device, dtype=torch.int64)
        pool = torch.randn(pooled, **made) if pooled else None
        return PromptEncoding(torch.randn(hidden, **made), pool, mask)

    return type(f"Random{kind.__name__}", (kind,), {"_encode_prompt": random, "_xl": bool(pooled)})(
        card, pipeline, device=device, **placed
    )


def _is_family(found: Any, module: str, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base) and found.__module__ == module


def _bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _waited(family: Family) -> None:
    import torch

    if family.device.type == "cuda":
        torch.cuda.synchronize(family.device)


def _emptied(peak: bool = False) -> None:
    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        if peak:
            torch.cuda.reset_peak_memory_stats()


def _table(found: dict[str, Any]) -> str:
    rows = []
    for count, batch in found["batches"].items():
        if "out_of_memory" in batch:
            rows.append((count, "out of memory", "", "", "", ""))
        else:
            peak = batch["peak_bytes"] / 2**30
            rows.append(
                (count, batch["step_s"], batch["row_steps_per_s"], batch["decode_s"], batch["pictures_per_min"], peak)
            )
    said = f"\nswitch: out {found['switch']['out_s']:.2f} s, in {found['switch']['in_s']:.2f} s"
    return table(["rows", "s/step", "row steps/s", "s decoding", "pictures/min", "peak GiB"], rows) + said


if __name__ == "__main__":
    main()
