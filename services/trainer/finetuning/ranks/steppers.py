"""Make the stepper of a run: one process, data parallel, or the pipeline that the planner found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch

from services.trainer.finetuning.batches import Batch
from services.trainer.finetuning.model.loaded import Loaded
from services.trainer.finetuning.ranks.choice import Choice, chosen
from services.trainer.finetuning.ranks.data_parallel import DataParallel
from services.trainer.finetuning.ranks.group import Place, from_first, gathered, made_by_first
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import SingleProcess, Stepper
from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.costs.profile_file import read_profile
from services.trainer.pipeline.costs.recomputing import recomputed
from services.trainer.pipeline.drawing import draw
from shared.domain.errors import ConfigurationError

PROFILE, PLAN, SCHEDULE = "profile.json", "plan.json", "schedule.svg"


def new_stepper(
    settings: RunSettings, model: Loaded, batch: Batch, folder: RunFolder, place: Place, say: Callable[[str], None]
) -> Stepper:
    """Return the stepper that the settings or the planner choose; all ranks call it.

    batch: one of the run's, on whose first rows a pipeline's layers are measured where no profile is given.
    """
    parts = model.denoiser, model.encoders, model.objective
    micro_batch = settings.ranks.micro_batch
    if place.world == 1:
        if settings.ranks.parallel == "pipeline":
            say("one rank: a pipeline needs several, and ranks.parallel has no effect")
        return SingleProcess(*parts, micro_batch=micro_batch, autocast=model.autocast)
    profile = _profile(settings, model, batch, folder, place, say)
    if profile is not None and settings.gradient_checkpointing:
        profile = recomputed(profile)
    memory_bytes = _memory(settings, model, place)
    # searched once: processors that round differently could plan differently
    choice = made_by_first(place, lambda: chosen(settings, place.world, profile, memory_bytes))
    say(f"{place.world} ranks: {choice.why}")
    if choice.report is not None and place.leads:
        folder.write(PLAN, choice.report)
    if choice.plan is None or profile is None:
        return DataParallel(*parts, place, micro_batch=micro_batch, autocast=model.autocast)
    if place.leads:
        (folder.folder / SCHEDULE).write_text(draw(choice.plan, profile.frozen), encoding="utf-8")
    return _pipeline(settings, model, choice, profile, place)


def _memory(settings: RunSettings, model: Loaded, place: Place) -> float | None:
    """Return the bytes of the smallest of the ranks' GPUs; None on CPUs, whose memory the ranks share.

    Encoders whose outputs are kept are not in the profile, but on the GPU.
    """
    if model.device.type != "cuda":
        return None
    whole = min(gathered(place, torch.cuda.get_device_properties(model.device).total_memory))
    return float(whole - (encoder_bytes(model) if settings.data.keep_encoded else 0))


def encoder_bytes(model: Loaded) -> int:
    """Return the bytes of the weights of all components but the denoiser."""
    parts = [part for name, part in model.base.pipeline.components.items() if name != model.base.denoiser_name]
    modules = [part for part in parts if isinstance(part, torch.nn.Module)]
    return sum(one.numel() * one.element_size() for module in modules for one in module.parameters())


def _profile(
    settings: RunSettings, model: Loaded, batch: Batch, folder: RunFolder, place: Place, say: Callable[[str], None]
) -> Profile | None:
    """Return the profile that the settings name; for a pipeline without one, that of this model on these ranks."""
    ranks = settings.ranks
    if ranks.parallel == "data" or (ranks.parallel == "auto" and ranks.profile is None):
        return None
    if ranks.profile is not None:
        path = ranks.profile
        found = made_by_first(place, lambda: read_profile(path))  # it may differ between machines
        return found.model_copy(update={"frozen": ()}) if settings.data.keep_encoded else found
    source = profile_source(settings, model, place.world)
    earlier = from_first(place, _earlier(folder.folder / PROFILE, source) if place.leads else None)
    if earlier is not None:
        return with_state(earlier, settings)
    found = _measured(model, batch, place.world, source, say)
    if place.leads:
        folder.write(PROFILE, found.model_dump(mode="json"))
    return with_state(found, settings)


def with_state(profile: Profile, settings: RunSettings) -> Profile:
    """Return a measured profile with what this run keeps for a byte of weights: AdamW's two averages of the trained
    ones, and their averaged weights."""
    layers = [layer for backbone in profile.backbones for layer in backbone.layers]
    weights, trained = sum(one.parameter_bytes for one in layers), sum(one.gradient_bytes for one in layers)
    kept = (3 if settings.optimizer.ema_decay else 2) * trained / (weights or 1)
    return profile.model_copy(update={"optimizer_bytes_per_parameter_byte": kept})


def profile_source(settings: RunSettings, model: Loaded, world: int) -> str:
    """Return all that a measured profile depends on, but for the images, as one line."""
    frozen = "kept outputs" if settings.data.keep_encoded else "encoders"
    adapters = "all weights" if settings.lora is None else f"LoRA of rank {settings.lora.rank}"
    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"measured for {settings.out.name}: {settings.model}, {settings.data.resolution} pixels, {world} ranks on "
        f"{model.device.type}, {dtype}, batch {settings.batch}, self-conditioning {settings.self_conditioning:g}, "
        f"{adapters}, {frozen}"
    )


def _earlier(path: Path, source: str) -> Profile | None:
    """Return the profile of an earlier start with the same source; None without one."""
    try:
        found = read_profile(path)
    except ConfigurationError:
        return None
    return found if found.source == source else None


def _measured(model: Loaded, batch: Batch, world: int, source: str, say: Callable[[str], None]) -> Profile:
    from services.trainer.finetuning.ranks.pipeline import new_training
    from services.trainer.pipeline.runtime.profiling import measured_profile

    say("measuring the layers on all ranks, for the planner")
    training = new_training(model)
    share = max(len(batch) // world, min(2, len(batch)))  # a whole batch may not fit into a device's memory
    sizes = sorted({1, max(share // 2, 1), share})
    return measured_profile(training, batch, sizes, model.device, autocast=model.autocast, source=source)


def _pipeline(settings: RunSettings, model: Loaded, choice: Choice, profile: Profile, place: Place) -> Stepper:
    from services.trainer.finetuning.ranks.pipeline import new_training
    from services.trainer.pipeline.runtime.executor import PipelineExecutor

    assert choice.plan is not None, "asked for where there is a plan"
    return PipelineExecutor(
        new_training(model),
        choice.plan,
        profile,
        device=model.device,
        autocast=model.autocast,
        recompute=settings.gradient_checkpointing,
        release=not place.leads,
        timeout=timedelta(seconds=settings.ranks.timeout_s),
    )
