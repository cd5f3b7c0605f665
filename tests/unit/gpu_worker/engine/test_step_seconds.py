"""Step times are predicted from the profile, then from the steps that ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from services.cli.profiles.mixes import fit, measure_mixes, measure_tasks, profile_mixes
from services.cli.profiles.storing import store_measured
from services.gpu_worker.engine.step_seconds import ENOUGH, ERROR, StepSeconds
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.models.step_profile import predictor_of
from shared.catalog import open_catalog
from shared.domain.types import Size
from shared.models import find_card
from shared.models.standalone import Line, line_of, line_through, read_shipped
from shared.models.step_regression import FILE, LEAST_MIXES, Mix, mix_of
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.engine.conftest import task

SMALL, WIDE = (64, 64, 1), (96, 64, 1)
LINE = Line(0.01, 1e-6)
ONE, TWO, BOTH = mix_of([(SMALL, 1)]), mix_of([(SMALL, 2)]), mix_of([(SMALL, 1), (WIDE, 1)])


def test_each_size_has_its_own_batch_or_all_share_one() -> None:
    groups, patches = StepSeconds(LINE), StepSeconds(LINE, together=True)
    assert groups.of(ONE) == patches.of(ONE) == pytest.approx(0.014096)
    assert groups.of(BOTH) == pytest.approx(0.02 + 0.01024)
    assert patches.of(BOTH) == pytest.approx(0.01 + 0.01024)
    assert groups.of(()) == 0.0


@given(st.floats(0.001, 0.1), st.floats(1e-9, 1e-5), st.integers(1, 10**6))
def test_the_line_through_exact_measurements_is_found(fixed_s: float, per_pixel_s: float, pixels: int) -> None:
    found = line_through({n: fixed_s + per_pixel_s * pixels * n for n in (1, 2, 4, 8)}, pixels)
    assert found.fixed_s + found.per_pixel_s * pixels * 3 == pytest.approx(fixed_s + per_pixel_s * pixels * 3, rel=1e-6)


def test_one_measurement_gives_a_line_without_a_fixed_part() -> None:
    assert line_through({2: 0.5}, 100) == Line(0.0, 0.0025)
    assert line_through({}, 100) == Line()


def test_the_shipped_profile_of_a_bundled_model_is_read() -> None:
    card = find_card("bundled:large")
    line = line_of(card, read_shipped(card))
    assert StepSeconds(line).of(mix_of([(SMALL, 2)])) == pytest.approx(0.0186, rel=0.15)
    assert line_of(card, {"step_s": "none"}) == Line()


def test_an_unknown_model_is_known_after_one_step() -> None:
    found = StepSeconds()
    found.took(ONE, 0.5)
    assert found.of(TWO) == pytest.approx(1.0)


def test_a_slower_machine_corrects_every_mix_and_a_mix_that_ran_counts_itself() -> None:
    found = StepSeconds(LINE)
    for _ in range(ENOUGH):
        found.took(ONE, 3 * LINE.fixed_s + 3 * LINE.per_pixel_s * 4096)
    assert found.of(BOTH) == pytest.approx(3 * StepSeconds(LINE).of(BOTH))
    for seconds in (9.0, 0.2, 0.2):
        found.took(TWO, seconds)
    assert found.of(TWO) == 0.2  # one slow step does not count


def test_the_regression_is_fitted_on_steps_of_the_engine(family: UNetFamily) -> None:
    measured = list(measure_mixes(family, 12, 3))
    assert len({mix for mix, _ in measured}) > 1
    found = fit(measured, "groups")
    known = [found.seconds(mix) for mix, _ in measured]
    assert all(one is not None and one > 0 for one in known)
    assert found.error > 0
    predicted = StepSeconds(LINE, regression=found)
    assert predicted.of(measured[0][0]) == known[0]
    assert predicted.error == found.error != ERROR
    huge: Mix = ((SMALL, 500),)
    assert predicted.of(huge) == StepSeconds(LINE).of(huge)


async def test_a_worker_reads_what_a_profile_measured_with_its_layout(family: UNetFamily, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    console = Console(quiet=True)
    value = profile_mixes(family, LEAST_MIXES, 2, "groups", tmp_path, console)
    assert json.loads((tmp_path / FILE).read_text()) == value
    card = family.card
    about = {"model": card.name, "weights_hash": card.weights_hash}
    await store_measured(settings, [], None, {"step_seconds": value}, None, None, about)
    catalog = await open_catalog(settings.catalog_url)
    try:
        same = await predictor_of(settings, catalog.profiles, card)
        other = await predictor_of(Settings(layout="patches"), catalog.profiles, card)
    finally:
        await catalog.close()
    assert same.error == value["error"]
    assert other.error == ERROR


def test_a_request_with_guidance_counts_two_passes(family: UNetFamily) -> None:
    tasks = [task("a"), task("b", guidance=1.0), task("c", size=Size(64, 32))]
    mix, seconds = measure_tasks(family, tasks)
    assert mix == (((64, 32, 1), 2), ((64, 64, 1), 3))
    assert seconds > 0
