"""The folder of a run: settings, metrics by iteration, and the loss plot."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.trainer.finetuning.data.fingerprint import difference, fingerprint, read_fingerprint, write_fingerprint
from services.trainer.finetuning.data.index import FILE
from services.trainer.finetuning.settings import RunSettings
from shared.domain.errors import ConfigurationError, StorageFullError

TRAINING = "training"
"""Folder inside `out` that holds everything but the fine-tuned model."""
FIXED = (
    "model", "batch", "seed", "self_conditioning", "lora", "data.path", "data.resolution", "data.longest_ratio",
    "data.held_out", "data.dropout", "data.scenes",
)  # fmt: skip
"""Settings that a run keeps when it is started again: weights, data and order depend on them."""
INDEXED = {"model", "seed", "data.path", "data.scenes"}
"""Settings on which the index of the data set and the kept outputs of the encoders depend."""


class RunFolder:
    """Files of one run. The first rank writes them."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / TRAINING
        self.metrics = self.folder / "metrics.jsonl"
        self.samples = self.folder / "samples"
        self.checkpoints = self.folder / "checkpoints"
        self.encoded = self.folder / "encoded"

    def begin(self, settings: RunSettings) -> None:
        """Make the folder and write settings.json.

        Raises ConfigurationError if the folder has checkpoints of a run with other settings.
        """
        path = self.folder / "settings.json"
        found = settings.model_dump(mode="json")
        try:
            before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else found
        except ValueError as error:
            raise ConfigurationError(f"out: {path} is broken ({error}); name another folder, or remove it") from error
        changed = _changed(before, found)
        if changed and self._has_checkpoints():
            raise ConfigurationError(
                f"out: {self.out} holds a run with another {changed[0]} ({_picked(before, changed[0])}); name "
                "another folder, or remove this one"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if INDEXED.intersection(changed) or not (self.folder / FILE).exists():
                self._drop_index()
            self.write(path.name, found)
        except OSError as error:
            raise ConfigurationError(f"out: {self.folder} cannot be written: {error.strerror}") from error

    def check_files(self, field: str, files: Mapping[str, Path], say: Callable[[str], None]) -> None:
        """Record the digests of the files that the setting `field` names; where they changed, drop what was made of
        them.

        Raises ConfigurationError if they changed and there are checkpoints: the rest of the run would train on other
        rows than its order, its held-out images and its kept outputs are for.
        """
        record = self.folder / f"{field.partition('.')[0]}-files.jsonl"
        before = read_fingerprint(record)
        now = fingerprint(files, before or {}, say)
        trained = self._has_checkpoints()
        if trained and before is not None and (differs := difference(before, now)):
            raise ConfigurationError(
                f"{field}: changed since the run in {self.out} began: {differs}; restore that, or name another folder "
                "in out"
            )
        if not trained and (before is None or difference(before, now)):
            self._drop_index()
        if before != now:
            write_fingerprint(record, now)

    def _has_checkpoints(self) -> bool:
        return any(one.name.isdigit() for one in self.checkpoints.glob("*"))

    def _drop_index(self) -> None:
        """Remove the index, and the kept outputs, which are named by its rows."""
        (self.folder / FILE).unlink(missing_ok=True)
        shutil.rmtree(self.encoded, ignore_errors=True)

    def write(self, name: str, content: Any) -> None:
        """Write one JSON file."""
        _replace(self.folder / name, json.dumps(content, indent=1) + "\n")

    def go_on(self, iterations: int) -> None:
        """Drop the metrics of iterations that a killed run made after its last checkpoint: they are made again."""
        rows = [row for row in self.rows() if row["iteration"] <= iterations]
        _replace(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def add(self, **row: Any) -> None:
        """Add one row to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise StorageFullError(f"{self.metrics} cannot be written: {error.strerror}") from error

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line that a kill cut short is left out."""
        if not self.metrics.exists():
            return []
        found = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def plot(self) -> None:
        """Plot loss.png: the loss of each iteration, its moving average, and the validation loss."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        rows = self.rows()
        losses = [(row["iteration"], row["loss"]) for row in rows if "loss" in row]
        held_out = [(row["iteration"], row["validation_loss"]) for row in rows if "validation_loss" in row]
        if not losses:
            return
        figure, axes = plt.subplots(figsize=(7, 3.6))
        axes.plot(*zip(*losses, strict=True), alpha=0.25, linewidth=0.8, label="loss")
        axes.plot(*zip(*_smoothed(losses), strict=True), label="loss, moving average")
        if held_out:
            axes.plot(*zip(*held_out, strict=True), marker="o", markersize=3, label="validation loss")
        axes.set(xlabel="iteration", ylabel="loss")
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
        figure.tight_layout()
        partial = self.folder / "loss.partial.png"
        figure.savefig(partial, dpi=110)
        plt.close(figure)
        os.replace(partial, self.folder / "loss.png")


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the settings that a run with checkpoints cannot change and that differ."""
    found = [name for name in FIXED if _picked(before, name) != _picked(now, name)]
    decay = "optimizer.ema_decay"  # checkpoints without averaged weights have none to go on with
    return [*found, decay] if _picked(now, decay) and not _picked(before, decay) else found


def _picked(settings: dict[str, Any], name: str) -> Any:
    """Return a setting by its name with dots."""
    found: Any = settings
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _smoothed(losses: list[tuple[int, float]], span: float = 50.0) -> list[tuple[int, float]]:
    """Return the exponential moving average over about `span` iterations, without its bias at the start."""
    decay, mean, weight = 1 - 1 / span, 0.0, 0.0
    found = []
    for iteration, loss in losses:
        if not math.isfinite(loss):
            continue
        mean, weight = decay * mean + (1 - decay) * loss, decay * weight + (1 - decay)
        found.append((iteration, mean / weight))
    return found


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
