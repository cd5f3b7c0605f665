"""Keeps the libraries' own progress bars and notices out of a benchmark's output."""

from __future__ import annotations

import os


def quiet() -> None:
    """To be called before transformers or diffusers are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
