"""matplotlib where it is installed, without a display."""

from __future__ import annotations

from typing import Any


def pyplot_or_none() -> Any:
    """None, and a line that says so, where it is not."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed")
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot
