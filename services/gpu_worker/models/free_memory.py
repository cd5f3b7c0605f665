"""Memory of the worker's device beside its weights, and the pixels of a step that fit into it."""

from __future__ import annotations

from pathlib import Path

import torch

from services.gpu_worker.models.residency import Resident
from shared.models.memory import estimate, pixel_limit
from shared.runtime.settings import Settings

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def pixel_limits(settings: Settings, models: Resident, device: torch.device, to_start: int = 0) -> dict[str, int]:
    """Return the pixels of each model's requests in one step that the memory holds beside the weights of all models;
    without those that are unknown.

    Loaded models have taken their memory already. With `offload`, weights come and go, so nothing is known. The
    `workers` of a process share the device, in equal parts. to_start: workers that load their models after this one.
    """
    if settings.offload != "none" or (free := free_bytes(device)) is None:
        return {}
    weights = {name: estimate(card, rows=1).weights for name, card in models.cards.items()}
    loaded = sum(family.memory_bytes for family in models.families.values())
    missing, every = sum(weights[name] for name in weights.keys() - models.families.keys()), sum(weights.values())
    if most := settings.resident_bytes:  # other models are unloaded first
        missing, every = min(missing, max(most - loaded, 0)), min(every, most)
    free -= missing + to_start * every
    free = max(free, 0) // settings.workers
    found = {name: pixel_limit(card, free) for name, card in models.cards.items()}
    return {name: pixels for name, pixels in found.items() if pixels}


def free_bytes(device: torch.device, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the free bytes of a GPU, or the available main memory within the container's limit; None: unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):  # not Linux
        return None
    try:
        most, used = (int((cgroup / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="utf-8").splitlines())
        used -= int(stat["inactive_file"])  # cached files, such as weights that were read, make room when asked
    except (OSError, ValueError, KeyError):  # no container, or `max`
        return available
    return min(available, max(most - used, 0))
