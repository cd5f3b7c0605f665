"""Results of a benchmark: figures, settings and machine, on the terminal and in one JSON file."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shared.models.k_table import FIG_10

NOOP_TABLE = f"{FIG_10.source} (or the table that the benchmark stores), whatever the encoder: it generates nothing"
"""K table of a no-op model. Such a model is exempt from the rule that a table belongs to one encoder."""
RESULTS = Path(__file__).parents[1] / "results"
PACKAGES = ("torch", "diffusers", "transformers", "grpcio", "numpy", "usearch", "sqlalchemy")


def machine() -> dict[str, Any]:
    """Describe the machine; `load_1min` is its load average, `fsync_p50_ms` the time of a durable write."""
    import torch

    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "load_1min": round(os.getloadavg()[0], 2),
        "fsync_p50_ms": round(_fsync_s() * 1000, 3),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def record(
    name: str,
    figures: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    on: Mapping[str, Any] | None = None,
    folder: Path = RESULTS,
    command: str = "",
) -> Path:
    """Write `<folder>/<name>.json` and print its path.

    `on` is the result of `machine()` before the run; `command` replaces this process's own command line."""
    if any(str(value).startswith("noop:") for value in settings.values()):
        settings = {**settings, "k_table": NOOP_TABLE}
        print(f"\nno-op model: {NOOP_TABLE}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "name": name,
        "command": command or " ".join(["python -m", _program(name), *map(shlex.quote, sys.argv[1:])]),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "figures": figures,
        "settings": settings,
        "machine": on or machine(),
    }
    text = json.dumps(_strict(content), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\nwrote {path}")
    return path


def _program(name: str) -> str:
    """Return the module that `python -m` runs."""
    started = sys.modules["__main__"].__spec__
    found = started.name if started is not None and started.name.startswith("bench.") else f"bench.{name}"
    return found.removesuffix(".__main__")


def _strict(value: Any) -> Any:
    """Replace nan and infinities, which JSON cannot hold, by null: they stand for values that were not measured."""
    if isinstance(value, Mapping):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def command_line(about: str | None) -> argparse.ArgumentParser:
    """Return a benchmark's command line, with an option for the folder of its figures."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    return parser


def virtual_command_line(about: str | None) -> argparse.ArgumentParser:
    """Return the command line of a benchmark in virtual time, which starts from the hits of bench.trace_plans."""
    parser = command_line(about)
    parser.add_argument("--plans", type=Path, default=RESULTS, help="folder of trace_plans.json")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    parser.add_argument("--period-s", type=float, default=180.0, help="period of the monitor")
    return parser


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return a benchmark's options without the machine's folders."""
    return {name: value for name, value in vars(given).items() if not isinstance(value, Path)}


def read_results(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Read the results that `record` wrote."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile `share` of the values (linear between neighbours); nan for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows as a Markdown table, with the first column aligned left."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def share(value: float | None, digits: int = 2) -> str:
    """Format a share in per cent, as the pages write it; – if it is unknown."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _fsync_s(writes: int = 50) -> float:
    """Return the median seconds to sync 4 KiB in the temporary folder, where benchmarks keep their data."""
    taken = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(writes):
            file.write(bytes(4096))
            file.flush()
            start = time.monotonic()
            os.fsync(file.fileno())
            taken.append(time.monotonic() - start)
    return quantile(taken, 0.5)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
