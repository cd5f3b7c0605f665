"""Keep the libraries' own progress bars and notices out of a benchmark's output."""

from __future__ import annotations

import os


def quiet() -> None:
    """Silence the libraries; call this before importing transformers or diffusers."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
