"""The pixels of a step follow from free memory and the card's activations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.models import free_memory
from services.gpu_worker.models.free_memory import free_bytes, pixel_limits
from services.gpu_worker.models.residency import Resident
from shared.models import find_card
from shared.models.memory import USABLE, estimate, pixel_limit
from shared.runtime.settings import Settings

CPU = torch.device("cpu")
SDXL = find_card("stabilityai/stable-diffusion-xl-base-1.0")
MEGAPIXEL = 1024 * 1024


def test_twice_the_memory_holds_twice_the_pixels() -> None:
    one = estimate(SDXL, rows=1).batch  # with guidance, at 1024×1024
    assert pixel_limit(SDXL, round(8 * one / USABLE)) == pytest.approx(8 * MEGAPIXEL, rel=1e-6)
    assert pixel_limit(SDXL, round(16 * one / USABLE)) == pytest.approx(16 * MEGAPIXEL, rel=1e-6)
    assert pixel_limit(replace(SDXL, default_guidance=1.0), round(8 * one / USABLE)) >= 16 * MEGAPIXEL - 2
    assert pixel_limit(replace(SDXL, row_values=0), 2**40) == 0
    assert pixel_limit(SDXL, 0) == MEGAPIXEL  # full memory is no unknown limit, and refuses no default request


def test_weights_that_are_not_loaded_yet_are_left_free(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda _: 10 * 2**30)
    unknown = family.card  # the card of a folder has no count of activations
    models = Resident({"sdxl": SDXL, "large": unknown}, lambda _: family)
    weights = estimate(SDXL, rows=1).weights + estimate(unknown, rows=1).weights
    assert pixel_limits(Settings(), models, CPU) == {"sdxl": pixel_limit(SDXL, 10 * 2**30 - weights)}
    models.families["sdxl"] = models.families["large"] = family
    assert pixel_limits(Settings(), models, CPU) == {"sdxl": pixel_limit(SDXL, 10 * 2**30)}
    assert pixel_limits(Settings(offload="model"), models, CPU) == {}
    monkeypatch.setattr(free_memory, "free_bytes", lambda _: 0)
    assert pixel_limits(Settings(), models, CPU) == {"sdxl": MEGAPIXEL}


def test_weights_that_make_room_for_others_count_once(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda _: 20 * 2**30)
    models = Resident({"sdxl": SDXL, "large": family.card}, lambda _: family)
    models.families["large"] = family
    limits = pixel_limits(Settings(resident_bytes=family.memory_bytes + 2**30), models, CPU)
    assert limits == {"sdxl": pixel_limit(SDXL, 19 * 2**30)}


def test_workers_of_one_process_share_the_memory(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda _: 50 * 2**30)
    models = Resident({"sdxl": SDXL}, lambda _: family)
    models.families["sdxl"] = family
    weights, settings = estimate(SDXL, rows=1).weights, Settings(workers=2)
    assert pixel_limits(settings, models, CPU) == {"sdxl": pixel_limit(SDXL, 25 * 2**30)}
    first = pixel_limits(settings, models, CPU, to_start=1)
    assert first == {"sdxl": pixel_limit(SDXL, (50 * 2**30 - weights) // 2)}


def test_free_memory_is_what_the_machine_and_the_container_leave(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert free_bytes(CPU, meminfo, tmp_path) is None
    meminfo.write_text("MemTotal:       24000 kB\nMemAvailable:   12000 kB\n")
    assert free_bytes(CPU, meminfo, tmp_path) == 12000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert free_bytes(CPU, meminfo, tmp_path) == 12000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\nfile 700000\ninactive_file 600000\n")
    assert free_bytes(CPU, meminfo, tmp_path) == 2600000  # cached files make room
