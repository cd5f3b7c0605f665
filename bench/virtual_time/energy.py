"""Energy of a machine by its own meters (MoDM §A.4 uses Zeus, which reads the same meters), and by a stated power.

RAPL counts the processor packages if /sys/class/powercap is readable. NVML counts the NVIDIA GPUs if nvidia-ml-py is
installed (`pip install nvidia-ml-py`; Volta or newer). Both count everything that runs on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from shared.domain.errors import ConfigurationError

POWERCAP = Path("/sys/class/powercap")
BUSY_WATTS, IDLE_WATTS = 300.0, 30.0
"""Stated, not measured, power of one worker with any model. 300 W is the board power of both GPUs in MoDM §6 (A40 and
MI210)."""


@dataclass(frozen=True)
class Counter:
    """One counter of joules that rises to `range_j` and starts again at 0."""

    read_j: Callable[[], float]
    range_j: float

    def since(self, before: float) -> float:
        """Return the joules since a reading; the counter may wrap once at most."""
        return (self.read_j() - before) % self.range_j


@dataclass(frozen=True)
class Meter:
    """All counters of a machine."""

    source: str
    counters: tuple[Counter, ...]

    def readings(self) -> tuple[float, ...]:
        return tuple(counter.read_j() for counter in self.counters)

    def since(self, before: tuple[float, ...]) -> float:
        """Return the joules of all counters since these readings; read at least once an hour, since RAPL counters
        wrap."""
        return sum(counter.since(one) for counter, one in zip(self.counters, before, strict=True))


def open_meter(powercap: Path = POWERCAP) -> Meter | None:
    """Open the meters of this machine's GPUs and processors; None if there are none."""
    found = {"NVML": _nvml(), "RAPL": _rapl(powercap)}
    counters = tuple(counter for some in found.values() for counter in some)
    return Meter(" + ".join(name for name, some in found.items() if some), counters) if counters else None


def stated_joules(
    busy_s: float, idle_s: float, busy_watts: float = BUSY_WATTS, idle_watts: float = IDLE_WATTS
) -> float:
    """Return the joules of workers' seconds; ConfigurationError if an idle worker takes more than a busy one."""
    if not 0 <= idle_watts <= busy_watts:
        raise ConfigurationError(f"idle watts must lie between 0 and busy watts ({busy_watts:g}; got {idle_watts:g})")
    return busy_s * busy_watts + idle_s * idle_watts


def _rapl(powercap: Path) -> list[Counter]:
    """Return one counter per processor package (`intel-rapl:0`), which includes its parts (`intel-rapl:0:1`)."""
    found = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package"):
            energy = zone / "energy_uj"
            try:
                energy.read_text()
            except PermissionError:  # since Linux 5.10 only root can read it
                continue
            turn_j = int((zone / "max_energy_range_uj").read_text()) / 1e6
            found.append(Counter(partial(_rapl_j, energy), turn_j))
    return found


def _rapl_j(energy: Path) -> float:
    return int(energy.read_text()) / 1e6


def _nvml_j(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


def _nvml() -> list[Counter]:
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        for handle in handles:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:  # no driver, or a GPU that counts no energy
        return []
    return [Counter(partial(_nvml_j, pynvml, handle), float("inf")) for handle in handles]
