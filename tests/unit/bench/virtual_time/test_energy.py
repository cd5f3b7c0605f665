"""Joules read off a tree of RAPL counters as Linux lays them out, and joules by a stated power."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.virtual_time.energy import open_meter, stated_joules
from shared.domain.errors import ConfigurationError


def zone(powercap: Path, name: str, domain: str, energy_uj: int) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{domain}\n")
    (folder / "max_energy_range_uj").write_text("5000000000\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def test_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 500_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 4_999_000_000)
    meter = open_meter(tmp_path)
    assert meter is not None
    assert meter.source.endswith("RAPL")
    before = meter.readings()
    first.write_text("3500000\n")
    part.write_text("2500000\n")
    second.write_text("1000000\n")  # the counter began again at 0 after 5,000 J
    rapl = [counter.since(one) for counter, one in zip(meter.counters, before, strict=True)][-2:]
    assert rapl == [pytest.approx(2.5), pytest.approx(2.0)]


def test_a_machine_without_packages_has_no_rapl(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "psys", 1_000_000)
    meter = open_meter(tmp_path)
    assert meter is None or meter.source == "NVML"


def test_stated_joules_by_hand() -> None:
    assert stated_joules(10.0, 5.0, busy_watts=300.0, idle_watts=30.0) == 3150.0
    with pytest.raises(ConfigurationError, match=r"between 0 and busy watts \(100; got 200\)"):
        stated_joules(1.0, 1.0, busy_watts=100.0, idle_watts=200.0)
