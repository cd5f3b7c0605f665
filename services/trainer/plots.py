"""Plots of the bundled models' profiles: seconds per step by batch, lowest allowed similarity by K."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from shared.models.k_table import IMAGE_STEPS


def write_plots(models: Path, out: Path) -> None:
    """Write `latency.png` and `k_tables.png` into `out` from the tables in the folders of `models`."""
    out.mkdir(parents=True, exist_ok=True)
    _latency(models, out / "latency.png")
    _save(*k_table_panels(models), out / "k_tables.png")


def _latency(models: Path, target: Path) -> None:
    figure, axes = _figure(1, (5.4, 3.2))
    for path in sorted(models.glob("*/latency.json")):
        found: dict[str, Any] = json.loads(path.read_text())
        counts = [int(count) for count in found["step_s"]]
        seconds = [1000 * s for s in found["step_s"].values()]
        axes[0].plot(counts, seconds, marker="o", label=f"{path.parent.name}, a step ({found['threads']} thread)")
        axes[0].axhline(1000 * found["decode_s"], ls=":", lw=1, color=axes[0].lines[-1].get_color())
    axes[0].set(xlabel="requests in the batch, 64×64", ylabel="milliseconds", ylim=(0, None))
    axes[0].set_title("A denoising step (dotted: decoding one picture)", fontsize=9)
    _save(figure, axes, target)


def k_table_panels(models: Path) -> tuple[Any, list[Any]]:
    """Return a figure with one panel per use of a table: the lowest similarity that allows each K, without a point if K
    is never allowed. A table of a further T has a panel of its own, if it allows any K."""
    files = [path for kind in ("", "image_", "pair_") for path in sorted(models.glob(f"*/{kind}k_table_*.json"))]
    every: dict[Path, dict[str, Any]] = {path: json.loads(path.read_text()) for path in files}
    tables = {path: table for path, table in every.items() if table["levels"] or not _further_t(path)}
    uses = {path: _use(path, table) for path, table in tables.items()}
    panels = list(dict.fromkeys(uses.values()))
    figure, axes = _figure(len(panels), (3.1 * len(panels), 3.2))
    for path, found in sorted(tables.items(), key=lambda item: float(item[1]["alpha"])):
        panel = axes[panels.index(uses[path])]
        size = 4 if panel.lines else 8  # so that equal tables show both markers
        levels = sorted((level["k"], level["min_similarity"]) for level in found["levels"])
        ks, least = [k for k, _ in levels], [similarity for _, similarity in levels]
        panel.step(ks, least, where="mid", marker="o", markersize=size, label=f"α = {found['alpha']}")
        fiftieth = found["steps"] / 50
        panel.set(xlabel=f"K of {found['steps']} steps", xticks=[k * fiftieth for k in IMAGE_STEPS])
        panel.set(xlim=(3 * fiftieth, 32 * fiftieth), ylim=(-0.45, 1.05))
        panel.set_title(uses[path], fontsize=9)
    axes[0].set_ylabel("similarity must be above")
    return figure, axes


def _use(path: Path, table: dict[str, Any]) -> str:
    at = f" at T = {table['steps']}" if _further_t(path) else ""
    if path.name.startswith("pair_"):
        return f"{table['model']} from pairs of clips{at}"
    source = table.get("images_from")
    return f"{table['model']} from " + (f"{source}'s pictures{at}" if source else f"its own latents{at}")


def _further_t(path: Path) -> bool:
    """Whether a file's table is for another T than the model's own (`table_file`)."""
    return re.search(r"_t\d+$", path.stem) is not None


def _figure(panels: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=size, squeeze=False)
    return figure, list(axes[0])


def _save(figure: Any, axes: list[Any], target: Path) -> None:
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
