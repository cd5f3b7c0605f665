"""Atomic checkpoints, averaged weights, progress lines, loss curves and grids of every training run."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
import torch
from PIL import Image
from torch import nn

from shared.runtime.progress import Remaining

log = structlog.get_logger()


def _log(line: str) -> None:
    log.info(line)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's weights, where its inputs must be."""
    return next(module.parameters()).device


def fast_in_bfloat16(device: torch.device) -> bool:
    """Return whether bfloat16 is faster than float32; a CPU without AVX-512 or its like takes ten times as long."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def autocast(device: torch.device) -> torch.autocast:
    """Return an autocast to bfloat16 for the operations where bfloat16 is safe, if the device is fast at it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=fast_in_bfloat16(device))


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a run's state atomically: a kill leaves either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    torch.save(dict(state), partial)
    os.replace(partial, path)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return a run's last state, or None before the first; only tensors and plain values are unpickled."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def steps_done(path: Path) -> int:
    """Return the number of steps in a checkpoint; 0 before the first."""
    state = load_checkpoint(path)
    return 0 if state is None else int(state["step"])


class Average:
    """An exponential moving average of modules' weights (the weights that ship), with a short memory early on."""

    def __init__(self, modules: Iterable[nn.Module], decay: float = 0.998) -> None:
        self._live = [tensor for module in modules for tensor in module.state_dict().values()]
        self.tensors = [tensor.detach().clone() for tensor in self._live]
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, steps: int = 1) -> None:
        """Fold the live weights in, as after `steps` training steps."""
        self.updates += steps
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) ** steps
        for mean, live in zip(self.tensors, self._live, strict=True):
            if mean.is_floating_point():
                mean.lerp_(live, 1 - decay)
            else:
                mean.copy_(live)

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for mean, saved in zip(self.tensors, state["tensors"], strict=True):
            mean.copy_(saved)
        self.updates = state["updates"]

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the live weights and their average; a second call undoes it."""
        for mean, live in zip(self.tensors, self._live, strict=True):
            kept = live.clone()
            live.copy_(mean)
            mean.copy_(kept)


@dataclass
class Progress:
    """Progress of a run: a log line every half minute, a row of `losses.csv` every `every` steps, and a loss curve.

    `steps` is the most that the run takes. `done`, `share` and `used_s` are the steps, the share of the whole and the
    seconds of earlier sessions.
    """

    folder: Path
    name: str
    every: int = 50
    used_s: float = 0.0
    steps: int = 0
    done: int = 0
    share: float | None = None
    started: float = field(default_factory=time.monotonic)
    _sums: dict[str, float] = field(default_factory=dict)
    _count: int = 0
    _remaining: Remaining = field(init=False)

    def __post_init__(self) -> None:
        title = f"training {self.name}, steps"
        self._remaining = Remaining(title, self.steps, done=self.done, share=self.share, say=_log)

    def add(self, step: int, samples: int, *, share: float | None = None, **losses: float) -> None:
        """Fold one step's losses in and report if it is time; `share` is the part of the run that is done."""
        for key, value in losses.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._count += 1
        means = {key: value / self._count for key, value in self._sums.items()}
        self._remaining.reached(step, share=share, note=", ".join(f"{key} {mean:.4g}" for key, mean in means.items()))
        if step % self.every:
            return
        wall_s = self.used_s + time.monotonic() - self.started
        row = {"step": step, "samples": samples, "wall_s": round(wall_s, 1)}
        self._write(row | {key: round(value, 5) for key, value in means.items()})
        self._sums, self._count = {}, 0

    def _write(self, row: Mapping[str, float]) -> None:
        """Write one row of `losses.csv`.

        A loss that is newer than the file has no column; a loss that ended leaves its column empty. Rows that a killed
        run wrote for repeated steps are replaced.
        """
        path = self.folder / f"{self.name}-losses.csv"
        columns, before = list(row), list[dict[str, str]]()
        if path.exists():
            with path.open(newline="") as file:
                reader = csv.DictReader(file)
                columns, before = list(reader.fieldnames or columns), list(reader)
        partial = path.with_suffix(".csv.partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(one for one in before if int(one["step"]) < row["step"])
            writer.writerow(row)
        partial.replace(path)

    def plot(self) -> None:
        """Plot `losses.csv` as `<name>-losses.png`."""
        path = self.folder / f"{self.name}-losses.csv"
        if path.exists():
            plot_losses(path, path.with_suffix(".png"))


def plot_losses(table: Path, target: Path) -> None:
    """Plot the columns of a loss table against the number of samples."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with table.open() as file:
        rows = list(csv.DictReader(file))
    samples = [float(row["samples"]) for row in rows]
    figure, axes = plt.subplots(figsize=(6, 3.2))
    for column in rows[0]:
        if column not in ("step", "samples", "wall_s"):
            axes.plot(samples, [float(row[column] or "nan") for row in rows], label=column)
    axes.set(xlabel="samples", ylabel="loss", yscale="log")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def save_grid(pictures: list[npt.NDArray[np.uint8]], columns: int, path: Path, scale: int = 1) -> None:
    """Save images (height, width, 3) as a grid on grey; every cell is as large as the largest image."""
    h, w = max(p.shape[0] for p in pictures) + 2, max(p.shape[1] for p in pictures) + 2
    sheet = np.full((-(-len(pictures) // columns) * h, columns * w, 3), 128, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        y, x = i // columns * h, i % columns * w
        sheet[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    image = Image.fromarray(sheet)
    partial = path.with_suffix(".partial.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(partial, optimize=True)
    os.replace(partial, path)


def to_tensor(pictures: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Convert (B, height, width, 3) uint8 to (B, 3, height, width) float32 in −1…1."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pictures(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Convert (B, 3, height, width) in −1…1 to (B, height, width, 3) uint8."""
    scaled = ((tensor.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    found: npt.NDArray[np.uint8] = scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return found
