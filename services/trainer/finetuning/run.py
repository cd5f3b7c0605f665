"""`afterimage train run`: from a settings file to a fine-tuned model that can be served."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from services.trainer.finetuning.data.images import Source
from services.trainer.finetuning.data.index import Indexed, make_index, read_index, source_of
from services.trainer.finetuning.data.training_data import TrainingData
from services.trainer.finetuning.estimates import estimated
from services.trainer.finetuning.loop import Loop
from services.trainer.finetuning.model.checkpoint import find_base
from services.trainer.finetuning.model.export import export_model, write_adapter
from services.trainer.finetuning.model.loaded import Loaded, load
from services.trainer.finetuning.model.sampling import write_samples
from services.trainer.finetuning.optimizing import Updates
from services.trainer.finetuning.ranks.agreement import check_same, check_settings
from services.trainer.finetuning.ranks.data_parallel import DataParallel
from services.trainer.finetuning.ranks.group import Place, device_of, joined, made_by_all, made_by_first, place_of
from services.trainer.finetuning.ranks.memory_advice import memory_advice
from services.trainer.finetuning.ranks.steppers import new_stepper
from services.trainer.finetuning.saving.checkpoints import Checkpoints
from services.trainer.finetuning.saving.lock import locked
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import SingleProcess, Stepper
from shared.domain.errors import ConfigurationError, ModelError
from shared.models.weights import hashed_files

READING_S = 86_400.0
"""Seconds that the other ranks wait while the first one fetches the checkpoint and reads every image once."""


class DeviceMemoryError(ModelError):
    """A training iteration needs more memory than the GPU has.

    The message names the settings that lower the memory of this run: smaller passes (`ranks.micro_batch`, without a
    pipeline), `gradient_checkpointing`, more ranks of a pipeline, no averaged weights, or adapters (`[lora]`).
    """


class RunFileError(ModelError):
    """A file of a training run cannot be read or written.

    Free disk space or mend the permissions, and give the same command again.
    """


def train(settings: RunSettings, say: Callable[[str], None], *, estimate_only: bool = False) -> Loop:
    """Train, sample and export on this rank of a run; torchrun's variables name the others.

    say: gets lines for users, on the first rank alone. Returns the loop, which knows whether a signal stopped the run;
    with several ranks keep it until `os._exit` (see `joined`). Raises AfterimageErrors that name what to change.
    """
    try:
        return _train(settings, say, estimate_only)
    except OSError as error:
        said = f"{error.filename or settings.out}: {error.strerror or error}"
        raise RunFileError(f"{said}; the run goes on from its last checkpoint") from error


def _train(settings: RunSettings, say: Callable[[str], None], estimate_only: bool) -> Loop:
    import matplotlib  # noqa: F401  # the loss plot needs it: fail before hours of training

    place = place_of(os.environ)
    device = device_of(settings.device, place)
    folder = RunFolder(settings.out)
    report = say if place.leads else _ignore
    steppers: list[Stepper] = []
    with _memory_named(settings, place, steppers), joined(place, device, settings.ranks.timeout_s), ExitStack() as kept:
        check_settings(place, settings)
        source = _prepare(settings, folder, place, report, kept)
        rows = _rows(folder, place)
        model = load(settings, device, folder.encoded)
        if place.world > 1:
            check_same(place, model.base.card.weights_hash, f"model: {settings.model}")
        data = TrainingData(source, rows, settings, model.base.card)
        _describe(data, settings, model, report)
        stepper = new_stepper(settings, model, data.batch(0), folder, place, report)
        steppers.append(stepper)
        updates = Updates(stepper.parameters(), settings, fp16=model.dtype == torch.float16)

        def on_first(work: Callable[[], None]) -> None:
            """Do something on the first rank with the averaged weights of all ranks."""
            with updates.averaged():
                stepper.gather()
                if place.leads:
                    work()

        def sample(done: int) -> None:
            if settings.validation.prompts:
                on_first(lambda: _sample(settings, model, data, folder, done))

        checkpoints = Checkpoints(folder.checkpoints, place, settings.checkpoints.keep)
        loop = Loop(settings, place, data, stepper, updates, checkpoints, folder, sample, report)
        loop.resume()
        if (left := settings.iterations - loop.done) > 0:
            batch, upcoming = data.batch(loop.done), data.batch(loop.done + 1)
            for line in estimated(stepper, batch, upcoming, model.modules, updates.average is not None).lines(
                settings, left
            ):
                report(line)
        if not estimate_only:
            loop.run()
            if not loop.stopped_by:
                on_first(lambda: _export(settings, model, data, report))
        return loop


@contextmanager
def _memory_named(settings: RunSettings, place: Place, steppers: Sequence[Stepper]) -> Iterator[None]:
    """Raise DeviceMemoryError for torch's error, with what to change for the stepper, once there is one."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        pipeline = place.world > 1 and settings.ranks.parallel == "pipeline"  # while it is loaded and measured
        if steppers:
            pipeline = not isinstance(steppers[0], SingleProcess | DataParallel)
        advice = memory_advice(settings, place.world, pipeline=pipeline)
        said = str(error).split(". ")[0]
        raise DeviceMemoryError(f"rank {place.rank}: the GPU has too little memory ({said}): {advice}") from error


def _prepare(
    settings: RunSettings, folder: RunFolder, place: Place, say: Callable[[str], None], kept: ExitStack
) -> Source:
    """Check the model and the data, make the run's folder and its index on the first rank, and return the source.

    kept: gets the lock of the folder. Every rank raises an error where one does: no rank waits for it.
    """

    def make() -> None:
        _, base = find_base(settings.model)
        if base.resolve() == settings.out.resolve():
            raise ConfigurationError(f"out: {settings.out} is the folder of the model; name another one")
        kept.enter_context(locked(folder.folder, say))
        folder.begin(settings)
        folder.check_files("model", {path.relative_to(base).as_posix(): path for path in hashed_files(base)}, say)
        folder.check_files("data.path", {str(path): path for path in source.files()}, say)
        make_index(source, folder.folder, say)

    source = made_by_all(place, lambda: source_of(settings.data, settings.seed))[place.rank]
    made_by_first(place, make, patience_s=READING_S)
    return source


def _rows(folder: RunFolder, place: Place) -> list[Indexed]:
    """Return the index that the first rank made, and check that all ranks read the same one."""
    rows: list[Indexed] = []
    made_by_all(place, lambda: rows.extend(read_index(folder.folder)))
    check_same(place, hashlib.sha256(repr(rows).encode()).hexdigest(), f"out: the index in {folder.folder}")
    return rows


def _describe(
    data: TrainingData,
    settings: RunSettings,
    model: Loaded,
    say: Callable[[str], None],
) -> None:
    shapes = ", ".join(f"{size}: {len(rows)}" for size, rows in data.buckets.items())
    epoch = f"{data.batches_per_epoch:,} batches an epoch"
    say(f"{data.count:,} images ({shapes}), {data.held_out_count:,} held out; {epoch}")
    how = "all weights" if settings.lora is None else f"LoRA of rank {settings.lora.rank}"
    say(f"{model.base.card.name}: {how}, on {model.device.type}")


def _sample(settings: RunSettings, model: Loaded, data: TrainingData, folder: RunFolder, done: int) -> None:
    size = max(data.buckets, key=lambda size: len(data.buckets[size]))
    path = folder.samples / f"{done:08}.png"
    write_samples(model.base, model.denoiser, settings.validation, size, settings.seed, model.autocast, path)


def _export(settings: RunSettings, model: Loaded, data: TrainingData, say: Callable[[str], None]) -> None:
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


def _ignore(line: str) -> None:
    """Print nothing: the first rank prints the line."""
