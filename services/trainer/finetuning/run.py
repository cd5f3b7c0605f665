"""`afterimage train run`: from a settings file to a fine-tuned model that can be served."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.trainer.finetuning.data.images import Source
from services.trainer.finetuning.data.index import make_index, read_index, source_of
from services.trainer.finetuning.data.training_data import TrainingData
from services.trainer.finetuning.estimates import estimated
from services.trainer.finetuning.loop import Loop
from services.trainer.finetuning.loss import objective_of
from services.trainer.finetuning.model.checkpoint import Base, find_base, load_base
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from services.trainer.finetuning.model.encoders import CheckpointEncoders
from services.trainer.finetuning.model.export import export_model, write_adapter
from services.trainer.finetuning.model.kept import KeptEncoders
from services.trainer.finetuning.model.sampling import write_samples
from services.trainer.finetuning.optimizing import Updates
from services.trainer.finetuning.ranks.choice import chosen
from services.trainer.finetuning.ranks.data_parallel import DataParallel
from services.trainer.finetuning.ranks.group import Place, device_of, from_first, joined, place_of
from services.trainer.finetuning.saving.checkpoints import Checkpoints
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import Encoders, SingleProcess, Stepper
from shared.domain.errors import AfterimageError, ConfigurationError

READING_S = 86_400.0
"""Seconds that the other ranks wait while the first one fetches the checkpoint and reads every image once."""
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class _Model:
    """The parts of a checkpoint on this rank."""

    base: Base
    denoiser: CheckpointDenoiser
    encoders: Encoders
    autocast: torch.autocast | None


def train(settings: RunSettings, say: Callable[[str], None], *, estimate_only: bool = False) -> None:
    """Train, sample and export on this rank of a run; torchrun's variables name the others.

    say: gets lines for users, on the first rank alone. Raises AfterimageErrors that name what to change.
    """
    import matplotlib  # noqa: F401  # the loss plot needs it: fail before hours of training

    place = place_of(os.environ)
    settings.check_ranks(place.world)
    device = device_of(settings.device, place)
    folder = RunFolder(settings.out)
    tell = say if place.leads else _say_nothing
    with joined(place, device, settings.ranks.timeout_s):
        source = _prepare(settings, folder, place, tell)
        model = _load(settings, folder, device)
        data = TrainingData(source, read_index(folder.folder), settings, model.base.card)
        _describe(data, settings, model, device, tell)
        stepper = _stepper(settings, model, folder, place, tell)
        fp16 = model.autocast is not None and model.autocast.fast_dtype == torch.float16
        updates = Updates(stepper.parameters(), settings, fp16)

        def sample(done: int) -> None:
            if place.leads and settings.validation.prompts:
                _with_average(updates, lambda: _sample(settings, model, data, folder, done))

        checkpoints = Checkpoints(folder.checkpoints, place, settings.checkpoints.keep)
        loop = Loop(settings, place, data, stepper, updates, checkpoints, folder, sample, tell)
        loop.resume()
        left = settings.iterations - loop.done
        if left:
            modules = {"denoiser": model.denoiser, **model.base.pipeline.components}
            modules.pop(model.base.denoiser_name)
            trial = estimated(
                stepper, data.batch(loop.done), data.batch(loop.done), modules, updates.average is not None
            )
            for line in trial.lines(settings, left):
                tell(line)
        if estimate_only:
            return
        loop.run()
        if place.leads:
            _with_average(updates, lambda: _export(settings, model, data, tell), back=False)


def _prepare(settings: RunSettings, folder: RunFolder, place: Place, say: Callable[[str], None]) -> Source:
    """Check the model, make the run's folder and its index on the first rank, and return the data set's source.

    An error of the first rank is raised on every rank, so that none waits for it.
    """
    source = source_of(settings.data, settings.seed)
    wrong: AfterimageError | None = None
    if place.leads:
        try:
            find_base(settings.model)
            folder.begin(settings)
            make_index(source, folder.folder, say)
        except AfterimageError as error:
            wrong = error
    said = from_first(place, None if wrong is None else str(wrong), patience_s=READING_S)
    if wrong is not None:
        raise wrong
    if said is not None:
        raise AfterimageError(said)
    return source


def _load(settings: RunSettings, folder: RunFolder, device: torch.device) -> _Model:
    base = load_base(settings.model)
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    dtype = FORMATS[precision]
    denoiser = CheckpointDenoiser(
        base.denoiser,
        lora=settings.lora,
        self_conditioned=settings.self_conditioning > 0,
        seed=settings.seed,
        dtype=dtype,
        recompute=settings.gradient_checkpointing,
    )
    for name, part in base.pipeline.components.items():
        if isinstance(part, torch.nn.Module):
            part.to(device)
            if name.startswith("text_encoder"):
                part.to(dtype)
    plain = CheckpointEncoders(base.pipeline, base.denoiser)
    kept = folder.folder / "encoded"
    encoders: Encoders = KeptEncoders(plain, kept, device) if settings.data.keep_encoded else plain
    autocast = None if dtype == torch.float32 else torch.autocast(device.type, dtype)
    return _Model(base, denoiser, encoders, autocast)


def _stepper(
    settings: RunSettings, model: _Model, folder: RunFolder, place: Place, say: Callable[[str], None]
) -> Stepper:
    objective = objective_of(model.base.scheduler_config, settings.optimizer.min_snr_gamma)
    parts = model.denoiser, model.encoders, objective
    if place.world == 1:
        return SingleProcess(*parts, micro_batch=settings.ranks.micro_batch, autocast=model.autocast)
    choice = chosen(settings, place.world)
    say(f"{place.world} ranks: {choice.why}")
    if choice.plan is not None and place.leads:
        folder.write("plan.json", choice.plan)
    if choice.parallel == "pipeline":
        if settings.ranks.parallel == "pipeline":
            raise ConfigurationError("ranks.parallel: this version plans pipelines and runs data parallel; set data")
        say("this version runs data parallel instead")
    return DataParallel(*parts, place, micro_batch=settings.ranks.micro_batch, autocast=model.autocast)


def _describe(
    data: TrainingData,
    settings: RunSettings,
    model: _Model,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    shapes = ", ".join(f"{size}: {len(rows)}" for size, rows in data.buckets.items())
    epoch = f"{data.batches_per_epoch:,} batches an epoch"
    say(f"{data.count:,} images ({shapes}), {data.held_out_count:,} held out; {epoch}")
    how = "all weights" if settings.lora is None else f"LoRA of rank {settings.lora.rank}"
    say(f"{model.base.card.name}: {how}, on {device.type}")


def _with_average(updates: Updates, work: Callable[[], None], *, back: bool = True) -> None:
    """Do something with the averaged weights in place; `back`: and restore the trained ones."""
    if updates.average is None:
        work()
        return
    updates.average.swap()
    try:
        work()
    finally:
        if back:
            updates.average.swap()


def _sample(settings: RunSettings, model: _Model, data: TrainingData, folder: RunFolder, done: int) -> None:
    size = max(data.buckets, key=lambda size: len(data.buckets[size]))
    path = folder.samples / f"{done:08}.png"
    write_samples(model.base, model.denoiser, settings.validation, size, settings.seed, model.autocast, path)


def _export(settings: RunSettings, model: _Model, data: TrainingData, say: Callable[[str], None]) -> None:
    how = "fine-tuned" if settings.lora is None else f"fine-tuned (LoRA of rank {settings.lora.rank}, merged)"
    about = f"{model.base.card.name}, {how} on {data.count} images for {settings.iterations} iterations"
    if settings.lora is not None and not settings.self_conditioning:  # adapters alone have no place for the wider input
        write_adapter(model.base, model.denoiser, RunFolder(settings.out).folder / "adapter")
    card = export_model(model.base, model.denoiser, settings.out, about)
    say(f"wrote {settings.out}: model {card.name!r}, weights {card.weights_hash}")
    say(f"serve it:   afterimage up --large {_shell(settings)}")
    say(f"measure it: afterimage profile --model {_shell(settings)}   (until then only exact repeats are reused)")


def _shell(settings: RunSettings) -> str:
    return shlex.quote(str(settings.out))


def _say_nothing(line: str) -> None:
    """Leave a line to the first rank."""
