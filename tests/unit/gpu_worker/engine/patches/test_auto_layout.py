"""`layout=auto` in the engine: both layouts give the same images, and a profile's costs are read by the worker."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
import torch
from rich.console import Console

from services.cli.profiles.layouts import BothWays, InTurn, fit_costs, measure_both, profile_layouts
from services.cli.profiles.mixes import profiled_sizes, random_tasks
from services.cli.profiles.storing import store_measured
from services.gpu_worker.engine.layout_choice import LayoutChoice, Ran
from services.gpu_worker.engine.patches.auto_layout import AutoLayout
from services.gpu_worker.families import layout_of, load_family, mixed_layout
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.models.layout_profile import choices_of
from services.gpu_worker.models.measuring import load_warm
from services.gpu_worker.models.step_profile import predictor_of
from shared.catalog import open_catalog
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import find_card
from shared.models.card import SizeRule
from shared.models.layout_costs import FILE, KIND, LayoutCosts, costs_from_json, costs_to_json
from shared.models.step_regression import Mix, mix_of
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import drive, finished, solo, task
from tests.unit.gpu_worker.engine.reuse.conftest import always

SIZES = [Size(64, 64), Size(96, 64), Size(64, 96)]
COSTS = LayoutCosts("patches", "cpu", (0.01, 0.0, 2.0, 0.1), (0.02, 0.001, 2.5, 0.1), 0.08, 0.75)


CHOICE = LayoutChoice()


@pytest.fixture(scope="module")
def auto(tiny_folder: Path) -> UNetFamily:
    settings = Settings(layout="auto", device="cpu")
    found = load_warm(find_card(str(tiny_folder / "large")), settings, {"large": CHOICE})
    assert isinstance(found, UNetFamily)
    assert found.auto is not None
    assert found.auto.choice is CHOICE  # as the worker's profile made it
    return found


def test_a_run_that_changes_its_layout_equals_a_run_of_its_own(load: LoadFamily, auto: UNetFamily) -> None:
    assert auto.auto is not None
    before, auto.auto.choice = auto.auto.choice, InTurn()
    crowd = [task(str(size), size=size, seed=i, steps=6) for i, size in enumerate(SIZES)]
    together = finished(drive(auto, [(0, one) for one in crowd]))
    choice, auto.auto.choice = auto.auto.choice, before
    assert isinstance(choice, InTurn)
    assert [one.together for one in choice.ran] == [False, True] * 3
    assert {one.mix for one in choice.ran} == {mix_of(((s.width, s.height, 1), 2) for s in SIZES)}
    assert all(one.seconds > 0 for one in choice.ran)
    for one in crowd:
        np.testing.assert_allclose(together[one.id].latent, solo(load(0), one).latent, atol=1e-4)


def test_a_batch_of_one_size_is_no_decision(auto: UNetFamily) -> None:
    assert auto.auto is not None
    before, auto.auto.choice = auto.auto.choice, InTurn()
    drive(auto, [(0, task(name, steps=2)) for name in "ab"])
    choice, auto.auto.choice = auto.auto.choice, before
    assert isinstance(choice, InTurn)
    assert not choice.ran


def test_the_clock_waits_for_a_gpu_before_and_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: done.append("waited"))
    mixed = SimpleNamespace(mixes=lambda _: True, denoise=lambda *_: done.append("step"))
    choice = SimpleNamespace(together=lambda _: True, took=lambda ran: done.append(f"{ran.seconds:g}"))
    seconds = iter([1.0, 3.0])
    AutoLayout(mixed, choice, torch.device("cuda"), lambda: next(seconds)).denoise([], lambda: None)  # type: ignore[arg-type, misc]
    assert done == ["waited", "step", "waited", "2"]


def test_only_families_with_two_layouts_choose(tiny_folder: Path) -> None:
    large = find_card(str(tiny_folder / "large"))
    assert (layout_of(large, "auto"), layout_of(large, "auto", batch_invariant=2)) == ("auto", "groups")
    assert (layout_of(find_card("noop:"), "auto"), mixed_layout(find_card("noop:"))) == ("groups", "")
    pinned = load_family(large, layout="auto", batch_invariant=2)
    assert isinstance(pinned, UNetFamily)
    assert pinned.auto is None


async def test_the_worker_begins_with_the_costs_that_a_profile_measured(auto: UNetFamily, tmp_path: Path) -> None:
    settings, console = Settings(data_dir=tmp_path / "data", layout="auto", device="cpu"), Console(quiet=True)
    costs, regression = profile_layouts(auto, 10, 3, tmp_path, console)
    assert costs is not None
    assert json.loads((tmp_path / FILE).read_text()) == costs
    assert costs_from_json(costs).layout == "patches"
    card = auto.card
    about = {"model": card.name, "weights_hash": card.weights_hash}
    always = costs_to_json(replace(COSTS, mixed=(0.001, 0.0, 0.1, 0.0)))
    await store_measured(settings, [], None, {KIND: always, "step_seconds": regression}, None, None, about)
    catalog = await open_catalog(settings.catalog_url)
    try:
        with structlog.testing.capture_logs() as said:
            (choice,) = (await choices_of(settings, catalog.profiles, [card, find_card("noop:")])).values()
        predictor = await predictor_of(settings, catalog.profiles, card)
    finally:
        await catalog.close()
    assert choice.together(mix_of([((64, 64, 1), 2), ((96, 64, 1), 1)]))
    assert [(each["event"], each["groups_won"]) for each in said] == [("layout chosen by times", 0.75)]
    assert predictor.error == regression["error"]


async def test_costs_of_another_device_or_a_broken_file_do_not_count(auto: UNetFamily, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", layout="auto", device="cpu")
    card = auto.card
    about = {"model": card.name, "weights_hash": card.weights_hash}
    await store_measured(settings, [], None, {KIND: costs_to_json(replace(COSTS, device="H100"))}, None, None, about)
    (card.folder / FILE).write_text("{}")  # beside the weights, where a shipped one would be
    catalog = await open_catalog(settings.catalog_url)
    try:
        with structlog.testing.capture_logs() as said:
            (choice,) = (await choices_of(settings, catalog.profiles, [card])).values()
        (card.folder / FILE).write_text(json.dumps(costs_to_json(replace(COSTS, mixed=(0.001, 0.0, 0.1, 0.0)))))
        (shipped,) = (await choices_of(settings, catalog.profiles, [card])).values()
    finally:
        (card.folder / FILE).unlink()
        await catalog.close()
    mix = mix_of([((64, 64, 1), 2), ((96, 64, 1), 1)])
    assert [each["event"] for each in said] == ["the measured costs of layouts are ignored", "layout chosen by times"]
    assert (said[-1]["begins"], said[-1]["between"]) == ("groups", "groups, patches")
    assert not choice.together(mix)
    assert shipped.together(mix)


@pytest.mark.parametrize(
    "change",
    [{"groups": [1.0]}, {"mixed": [0.0, -1.0, 0.0, 0.0]}, {"error": float("nan")}, {"mixed": 3}],
)
def test_other_values_are_no_costs(change: dict[str, object]) -> None:
    assert costs_from_json(costs_to_json(COSTS)) == COSTS
    with pytest.raises(ModelError, match=r"layout_costs\.json"):
        costs_from_json(costs_to_json(COSTS) | change)


def test_the_fit_finds_exact_costs_and_needs_mixes_of_several_sizes(auto: UNetFamily) -> None:
    card, draw, measured = replace(auto.card, sizes=SizeRule(sizes=tuple(SIZES))), random.Random(1), []
    for _ in range(40):
        tasks = random_tasks(card, 8, draw)
        mix = mix_of(((one.size.width, one.size.height, 1), 1 if one.guidance == 1 else 2) for one in tasks)
        pixels = sum(w * h * n for (w, h, _), n in mix)
        measured.append(BothWays(mix, 0.01 * len(mix) + 2e-6 * pixels, 0.015 + 2.2e-6 * pixels))
    found = fit_costs(measured, "patches", "cpu")
    assert found is not None
    assert found.error < 1e-6
    assert found.ratio(measured[0].mix) == pytest.approx(measured[0].mixed_s / measured[0].groups_s)
    assert 0 < found.groups_won < 1
    assert fit_costs([one for one in measured if len(one.mix) == 1], "patches", "cpu") is None


def test_a_mix_is_measured_in_both_layouts(auto: UNetFamily) -> None:
    assert auto.auto is not None
    before = auto.auto.choice
    with torch.inference_mode():
        found = measure_both(auto, [task("a"), task("b", size=Size(96, 64))], time.process_time)
    assert (found.mix, auto.auto.choice) == (mix_of([((64, 64, 1), 2), ((96, 64, 1), 2)]), before)
    assert min(found.groups_s, found.mixed_s) > 0


def test_a_card_with_a_range_of_sizes_is_measured_at_three() -> None:
    card = find_card("stabilityai/stable-diffusion-xl-base-1.0")
    assert profiled_sizes(card) == [Size(512, 512), Size(768, 768), Size(1024, 1024)]


def test_steps_that_reuse_blocks_do_not_correct_the_choice(tiny_folder: Path) -> None:
    """A step in the other layout computes all blocks, so that a comparison would favour the present layout."""
    family = load_warm(find_card(str(tiny_folder / "large")), Settings(layout="auto", device="cpu"), {})
    assert isinstance(family, UNetFamily)
    assert family.auto is not None
    family.auto.choice = choice = InTurn()
    crowd = [(0, task(str(size), size=size, seed=i, steps=4)) for i, size in enumerate(SIZES)]
    family.reuse_blocks(always())
    drive(family, crowd)
    assert len(choice.ran) == 4  # each step is in the other layout than the last, and reuses nothing
    family.auto.choice = Same()
    drive(family, crowd)
    assert len(family.auto.choice.ran) == 1


@dataclass
class Same:
    """One batch in every step."""

    ran: list[Ran] = field(default_factory=list)

    def together(self, mix: Mix) -> bool:
        return True

    def took(self, ran: Ran) -> None:
        self.ran.append(ran)
