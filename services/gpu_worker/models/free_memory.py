"""Memory of the worker's device beside its weights, and the pixels of a step that fit into it."""

from __future__ import annotations

from pathlib import Path

import torch

from services.gpu_worker.models.residency import Resident
from shared.models.memory import estimate, pixel_limit
from shared.runtime.settings import Settings

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def pixel_limits(settings: Settings, models: Resident, device: torch.device) -> dict[str, int]:
    """Return the pixels of each model's requests in one step that the memory holds beside the weights of all models;
    without those that are unknown.

    Loaded models have taken their memory already. With `offload`, weights come and go, so nothing is known.
    """
    if settings.offload != "none" or (free := free_bytes(device)) is None:
        return {}
    missing = [card for name, card in models.cards.items() if name not in models.families]
    free -= sum(estimate(card, rows=1).weights for card in missing)
    found = {name: pixel_limit(card, max(free, 0)) for name, card in models.cards.items()}
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
    except (OSError, ValueError):  # no container, or `max`
        return available
    return min(available, max(most - used, 0))
