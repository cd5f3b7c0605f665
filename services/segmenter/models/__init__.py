"""The segmentation models, behind one port: phrases and frames in, one probability a pixel out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shared.runtime.animated_png import Frames

Shares = npt.NDArray[np.float32]
"""Probability that a pixel belongs to a phrase, shape (phrases, F, H, W)."""


class Segmenter(Protocol):
    """A loaded model; call from one thread at a time."""

    def segment(self, frames: Frames, phrases: Sequence[str]) -> Shares:
        """Return the probabilities of each phrase in each frame (F, H, W, 3); 0 where the model finds no phrase."""
        ...
