"""The training loop: batches, updates, validation, samples and checkpoints, on all ranks at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.trainer.finetuning.data.order import seed_of
from services.trainer.finetuning.data.training_data import TrainingData
from services.trainer.finetuning.optimizing import Updates
from services.trainer.finetuning.ranks.group import Place
from services.trainer.finetuning.ranks.stopping import StopRequest
from services.trainer.finetuning.saving.checkpoints import Checkpoints
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import Stepper
from shared.domain.errors import ModelError
from shared.runtime.progress import EVERY_S, Remaining

PATIENCE = 50
"""Updates in a row without a finite gradient after which a run ends."""


class DivergedError(ModelError):
    """The losses of a training run are no longer finite.

    Start it again from an earlier checkpoint with a lower `optimizer.rate`, or with `precision` bf16 or fp32.
    """


@dataclass
class Loop:
    """One run on one rank."""

    settings: RunSettings
    place: Place
    data: TrainingData
    stepper: Stepper
    updates: Updates
    checkpoints: Checkpoints
    folder: RunFolder
    sample: Callable[[int], None]
    """Function that writes the samples after so many iterations; all ranks call it."""
    say: Callable[[str], None]
    done: int = 0
    """Iterations that were made."""
    stopped_by: int = 0
    """Number of the signal that ended the run before its last iteration."""

    def resume(self) -> None:
        """Go on from the newest whole checkpoint; broken ones are named."""
        progress, broken = self.checkpoints.load(self.updates.tensors())
        before = "the run begins again" if progress is None else "the one before is taken"
        for line in broken:
            self.say(f"{line}; {before}")
        if progress is not None:
            self.done = int(progress["iterations"])
            self.updates.restore(progress["updates"])
            self.say(f"goes on after iteration {self.done:,}, from {self.folder.checkpoints}")
        if self.place.leads:
            self.folder.go_on(self.done)

    def run(self) -> None:
        """Train until the last iteration, or until a signal asks to stop.

        Raises DivergedError if gradients stay without a finite norm.
        """
        stop = StopRequest(self.place)
        with stop.listening():
            self._run(stop)

    def _run(self, stop: StopRequest) -> None:
        settings, first = self.settings, self.done + 1
        remaining = Remaining("training, iterations", settings.iterations, done=self.done, say=self.say)
        saved = -1
        while self.done < settings.iterations:
            loss = self._advance()
            if self.done == first:
                self.say(f"iteration {first:,} of {settings.iterations:,}: loss {loss:.4g}; more every {EVERY_S:g} s")
            remaining.reached(self.done, note=f"loss {loss:.4g}")
            last = self.done == settings.iterations
            if last or self.done % settings.validation.every == 0:
                self._validate()
            if last or self.done % settings.checkpoints.every == 0:
                self.save()
                saved = self.done
            if last or self.done % settings.validation.samples_every == 0:
                self.sample(self.done)
                if self.place.leads:
                    self.folder.plot()
            if not last and (number := stop.number()):
                if saved != self.done:
                    self.save()
                if self.place.leads:
                    self.folder.plot()
                self.say(f"stopped after iteration {self.done:,}, with a checkpoint; the same command goes on from it")
                self.stopped_by = number
                return
        if saved != self.done:  # a run whose iterations were all made before
            self.say(f"all {settings.iterations:,} iterations were made before")

    def save(self) -> None:
        """Write a checkpoint."""
        progress = {"iterations": self.done, "updates": self.updates.state()}
        self.checkpoints.save(self.done, self.updates.tensors(), progress)

    def _advance(self) -> float:
        """Make one iteration and return its loss."""
        began, iteration = time.monotonic(), self.done
        batch = self.data.batch(iteration)
        upcoming = self.data.batch(iteration + 1) if iteration + 1 < self.settings.iterations else None
        torch.manual_seed(seed_of(self.settings.seed, iteration, "layers", self.place.rank))  # layers with dropout
        scale = self.updates.loss_scale.scale
        loss = self.stepper.step(batch, upcoming, scale)
        norm = self.stepper.gradient_norm()
        accepted = self.updates.update(iteration, norm)
        if self.updates.skipped >= PATIENCE:
            raise DivergedError(
                f"gradients were not finite in {PATIENCE} iterations up to {iteration + 1}: lower optimizer.rate (now "
                f"{self.settings.rate:g}), or use another precision than {self.settings.precision}"
            )
        self.done += 1
        if self.place.leads:
            self.folder.add(
                iteration=self.done,
                loss=loss,
                gradient_norm=norm / scale,
                rate=self.updates.optimizer.param_groups[0]["lr"],
                samples=self.done * self.settings.batch,
                updated=accepted,
                seconds=round(time.monotonic() - began, 6),
            )
        return loss

    def _validate(self) -> None:
        """Measure the validation loss with the averaged weights."""
        batches = self.data.validation()
        if not batches:
            return
        with self.updates.averaged():
            total = sum(self.stepper.evaluate(batch) * len(batch) for batch in batches)
        loss = total / sum(map(len, batches))
        if self.place.leads:
            self.folder.add(iteration=self.done, validation_loss=loss)
        self.say(f"validation loss {loss:.4g} after {self.done:,} iterations")
