"""Access to matplotlib without a display, if it is installed."""

from __future__ import annotations

from typing import Any


def pyplot_or_none() -> Any:
    """Return pyplot, or print one line and return None if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed")
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot
