"""One session of a training run, which continues with the weights, optimizers and clock of the last session."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from services.trainer.training import runs

SETTLED = 1000
"""Updates that an average counts for exported weights, so that those weights do not fade at once."""


class Sitting:
    """State of a run while it trains; `step` counts over all sessions, `done` goes from 0 to 1.

    The run continues from `work/<name>.pt`. Without that file, `start` may give exported weights (of another machine,
    say), which train on with fresh optimizers. Without either, the run begins with the modules as they are.
    """

    def __init__(
        self,
        name: str,
        work: Path,
        modules: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        steps: int,
        rate: float,
        seconds: float = math.inf,
        decay: float = 0.995,
        every: int = 50,
        start: Callable[[], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        self._path, self._modules, self._optimizers = work / f"{name}.pt", modules, optimizers
        self._steps, self._seconds, self._rate = steps, seconds, rate
        self.step, self._used_s = 0, 0.0
        state = runs.load_checkpoint(self._path)
        if state is None and start is not None:
            modules["model"].load_state_dict(start())
        self.average = runs.Average([modules["model"]], decay=decay)
        if state is not None:
            for key, module in modules.items():
                module.load_state_dict(state[key])
            for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.average.load_state_dict(state["average"])
            self.step, self._used_s = state["step"], state["used_s"]
        elif start is not None:
            self.average.updates = SETTLED
        self._began = time.monotonic()
        self._progress = runs.Progress(
            work, name, every=every, used_s=self._used_s, steps=steps, done=self.step, share=self.share
        )

    @property
    def used_s(self) -> float:
        """Return the seconds of all sessions together."""
        return self._used_s + time.monotonic() - self._began

    @property
    def share(self) -> float:
        """Return the finished share of the run, by steps or by time."""
        return max(self.step / self._steps, self.used_s / self._seconds)

    def report(self, samples: int, **losses: float) -> None:
        """Fold the losses of the finished step into the run's progress."""
        self._progress.add(self.step, samples, share=self.share, **losses)

    def plot(self) -> None:
        self._progress.plot()

    def begin_step(self, seed: int) -> tuple[float, random.Random] | None:
        """Return the finished share of the run and the step's random state; None if its steps or its time are over.

        The learning rate is set to a warm-up of 100 steps, then half a cosine over the run. A group of parameters with
        a `scale` learns at that multiple of the rate.
        """
        done = self.share
        if done >= 1:
            return None
        rate = self._rate * min(1.0, (self.step + 1) / 100) * (0.51 + 0.5 * math.cos(math.pi * done))
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("scale", 1.0)
        return done, random.Random(seed * 1_000_003 + self.step)

    def end_step(self, loss: torch.Tensor, *, clip: bool = True) -> None:
        """Take one optimizer step along `loss`; `clip` limits the model's gradients to norm 1."""
        torch.autograd.backward(loss)
        if clip:
            nn.utils.clip_grad_norm_(self._modules["model"].parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.average.update()
        self.step += 1

    def save(self) -> None:
        """Write everything that a killed run needs to continue."""
        runs.save_checkpoint(
            self._path,
            {
                **{key: module.state_dict() for key, module in self._modules.items()},
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                "average": self.average.state_dict(),
                "step": self.step,
                "used_s": self.used_s,
            },
        )
