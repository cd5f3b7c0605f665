"""The trace served by the real planner and cache, broken off and taken up again; what quality figures are made of."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import two_model_quality as quality
from bench import two_processes
from bench.measuring.judging import Verdict, open_encoder
from bench.trace_plans import NIRVANA, RETRIEVAL, hits_of
from bench.traced import quality_figures
from bench.traced.painting import Blank, PlannedImage, claimed_by_small
from bench.traced.systems import Served, System
from bench.traced.traced_systems import SystemRun, main_size, raise_thresholds, same_work, windows
from bench.two_processes import Answer
from load.sessions import Prompt, make_trace
from services.replay.simulated.pace import Profile
from services.retriever.tables import Tables
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError
from shared.domain.types import ModelPlan, Plan, PlanSource, Request, Size
from shared.models.k_table import KTable
from shared.runtime.settings import Settings

SETTINGS = Settings(log_level="error", predictor="always", device="cpu")


@cache
def traced() -> list[Prompt]:
    """Made by the first test, not by every worker that collects them."""
    return main_size(make_trace(30, 65))


@pytest.mark.parametrize("system", [NIRVANA, RETRIEVAL])
async def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path, system: System) -> None:
    encoder = open_encoder(SETTINGS.encoder)
    run, seen = SystemRun(tmp_path, system), list[int]()
    await run.draw(traced()[:14], 4, SETTINGS, encoder, Blank(), seen.append)
    first = run.answers()
    assert sorted(first) == list(range(14))
    assert sum(seen) == 14
    with (run.folder / "answers.jsonl").open("a") as file:
        file.write('{"index": 14, "sour')  # killed in the middle of a line
    await SystemRun(tmp_path, system).draw(traced(), 4, SETTINGS, encoder, Blank())
    answers = run.answers()
    assert sorted(answers) == list(range(30))
    assert {index: answers[index] for index in first} == first
    hits = hits_of(run, 4, 26)
    assert {one.source for one in hits.served} <= {"noise", "exact" if system is RETRIEVAL else "latent"}
    assert all(answers[index].source == "noise" for index in range(4))
    if system is NIRVANA:  # what was drawn before the break is still there to start from
        assert any(answers[index].source == "latent" for index in range(14, 30))


def test_a_folder_that_was_drawn_with_something_else_is_refused(tmp_path: Path) -> None:
    same_work(tmp_path, {"count": 3, "hashes": {"large": "a"}})
    same_work(tmp_path, {"count": 3, "hashes": {"large": "a"}})
    with pytest.raises(ConfigurationError, match="other hashes"):
        same_work(tmp_path, {"count": 3, "hashes": {"large": "b"}})


def test_nobody_is_in_a_window_twice() -> None:
    found = list(windows(range(30), traced(), most=4))
    assert [index for window in found for index in window] == list(range(30))
    assert all(len({traced()[index].user for index in window}) == len(window) <= 4 for window in found)


def test_in_throughput_mode_small_models_take_what_waits_in_refine() -> None:
    families: Any = {name: SimpleNamespace(card=SimpleNamespace(weights_hash=name)) for name in ("large", "small")}
    request = Request("a fox", Size(64, 64), 50, 1.0, 7)

    def drawn(plan: Plan) -> tuple[str, int, str]:
        taken = claimed_by_small(families, request, plan)
        return taken.model, taken.start_step, taken.weights_hash

    hit = Plan(PlanSource.IMAGE, "large", 10, may_run=(ModelPlan("large", 10), ModelPlan("small", 5)))
    assert drawn(hit) == ("small", 5, "small")
    assert drawn(replace(hit, may_run=hit.may_run[:1])) == ("large", 10, "large")
    assert drawn(Plan(PlanSource.LATENT, "large", 20, may_run=(ModelPlan("large", 20),)))[:2] == ("large", 20)


def test_a_blank_leaves_the_states_that_its_plan_asks_for() -> None:
    request = Request("a fox", Size(64, 64), 50, 1.0, 7)
    plan = Plan(PlanSource.LATENT, "large", 20, capture_steps=(25,))
    (drawing,) = Blank().draw([PlannedImage("a", request, plan)]).values()
    assert (drawing.model, list(drawing.states), drawing.steps_run) == ("large", [25], 30)


def test_what_quality_figures_are_made_of() -> None:
    rng = np.random.default_rng(0)
    served = {n: Served(n, "image", "small", 10, 50, 0.6, (("small", 10),)) for n in range(40)}
    speeds = {"large": Profile("large", (1, 8), (1.0, 4.0), 1.0), "small": Profile("small", (1, 8), (0.25, 1.0), 1.0)}
    # of a full batch each row takes .5 and .125 s a step, and the picture is decoded and was encoded
    assert quality_figures.cost(served.values(), speeds) == pytest.approx((40 * 0.125 + 1 + 1) / (50 * 0.5 + 1))
    handed_out = [Served(0, "exact", "", 50, 50, 0.99, ())]
    assert quality_figures.cost(handed_out, speeds) == 0

    def scored(shift: float, clip: float, wrong: int) -> quality_figures.Scored:
        rights = {n: n >= wrong for n in range(40)}
        names = ("object", "background", "style", "light", "colour", "size", "position", "count")
        verdicts = {n: Verdict(clip, dict.fromkeys(names, right)) for n, right in rights.items()}
        return quality_figures.Scored(served, rng.standard_normal((40, 4)) + shift, verdicts)

    names = ("reference", "vanilla", "small", "modm")
    values = ((0.0, 0.3, 0), (0.0, 0.3, 0), (3.0, 0.29, 4), (1.0, 0.29, 1))
    users = {n: n % 10 for n in range(40)}
    found = quality_figures.figures_of({n: scored(*v) for n, v in zip(names, values, strict=True)}, speeds, users)
    assert all(found["goals"].values())
    beside = found["differences"]["modm - small"]
    assert beside["distance"][0] == pytest.approx(
        found["systems"]["modm"]["distance"] - found["systems"]["small"]["distance"]
    )
    assert beside["clip"] == pytest.approx((0.0, 0.0, 0.0))
    assert beside["all"][0] == pytest.approx(3 / 40)  # 4 wrong ones against 1
    assert beside["all"][1] < 3 / 40 < beside["all"][2]
    assert found["systems"]["modm"]["k_histogram"] == {"10": 40}
    assert found["systems"]["modm"]["clip_ratio"] == pytest.approx(0.29 / 0.3)
    assert found["systems"]["vanilla"]["distance"] < 1 < found["systems"]["modm"]["distance"]
    worse = {**found["systems"], "modm": found["systems"]["small"]}
    unsure = {"modm - small": {"distance": (-0.1, -0.3, 0.1)}}
    assert list(quality_figures.goals(worse, unsure).values()) == [False, True, False, False]


def test_systems_are_drawn_at_the_t_that_was_asked_for() -> None:
    given: Any = SimpleNamespace(systems=["modm", "fewer_steps", "vanilla", "modm"], steps=20)
    assert [(one.name, one.steps) for one in quality.chosen(given)] == [
        ("modm", 20), ("fewer_steps", 10), ("vanilla", 20)
    ]  # fmt: skip
    served = [Served(0, "noise", "large", 0, 20, 0.0, (("large", 0),))]
    speeds = {"large": Profile("large", (1, 8), (1.0, 4.0), 1.0)}
    assert quality_figures.cost(served, speeds, steps=20) == 1.0


async def test_raised_thresholds_are_what_the_planner_goes_by(tmp_path: Path) -> None:
    settings = Settings(**{**SETTINGS.model_dump(), "data_dir": tmp_path, "catalog_url": "", "small": "bundled:small"})
    (shipped,) = [one for one in await tables_of(settings) if one.images_from == "large" and one.levels]
    for _ in range(2):  # as a run that was broken off and goes on: raised once
        await raise_thresholds(settings, 0.045)
        (raised,) = [one for one in await tables_of(settings) if one.images_from == "large" and one.levels]
        assert [(one.k, round(one.min_similarity, 6)) for one in raised.levels] == [
            (one.k, round(one.min_similarity + 0.045, 6)) for one in shipped.levels
        ]


async def tables_of(settings: Settings) -> tuple[KTable, ...]:
    """The small model's tables for starts from images, as a retriever of these settings reads them."""
    catalog = await open_catalog(settings.catalog_url)
    try:
        tables = Tables(catalog.profiles, settings)
        await tables.open()
        return (await tables.of("small")).pictures
    finally:
        await catalog.close()


def test_the_middle_of_a_run_with_real_processes() -> None:
    answers = [Answer(float(at), 1.0, "image" if at % 2 else "noise", "small", 10 * (at % 2), 50) for at in range(20)]
    some = two_processes.middle(answers, settle=0.25)
    assert [one.at for one in some] == [float(at) for at in range(5, 19)]
    figures = two_processes.figures_of(two_processes.WAYS[4], answers, 0.25, {})
    assert figures["per_s"] == 1.0
    assert (figures["hit_rate"], figures["share_skipped"]) == (0.5, 0.2)
    metered = {"vanilla": 8.0, "modm": 2.0}
    systems = {"vanilla": {**figures, "per_s": 0.5}, "modm": figures, "modm_shared": dict(figures)}
    for name, joules in metered.items():
        systems[name]["joules_per_request"] = joules
    found = two_processes.with_bounds(systems, users=32)["systems"]
    assert found["modm"]["speedup"] == 2.0
    assert found["modm"]["bound"] == pytest.approx(1.0)  # 1 / (2·(1 − h)): one of two workers stays large
    assert found["modm_shared"]["bound"] > 1.5
    assert [found[name]["energy_saved"] for name in ("vanilla", "modm", "modm_shared")] == [0, 0.75, None]
    assert "no meter" in two_processes.report({"systems": found})


def test_systems_that_were_measured_before_a_break_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started here: the run is broken off when it comes to the first that is not there."""

    def started(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(two_processes, "missing", lambda _: [])
    monkeypatch.setattr(two_processes, "Stack", started)
    answers = [Answer(float(at), 1.0, "noise", "large", 0, 50) for at in range(20)]
    for way in two_processes.WAYS[:2]:
        (tmp_path / f"{way.name}.json").write_text(json.dumps(two_processes.figures_of(way, answers, 0.25, {})))
    asked = ["--work", str(tmp_path), "--out", str(tmp_path / "out"), "--count", "20"]
    ended = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        two_processes.main(asked)
    said = capsys.readouterr().out
    assert "2 of 6: small alone" in said
    assert "3 of 6: large with 10 steps" in said
    assert said.count("measured before") == 2
    assert signal.getsignal(signal.SIGTERM) is ended
    with pytest.raises(ConfigurationError, match="other count"):
        two_processes.main(["--work", str(tmp_path), "--count", "21"])
    two_processes.main([*asked, "--ways", "vanilla", "small"])
    found = json.loads((tmp_path / "out" / "two_processes.json").read_text())["figures"]["systems"]
    assert {name: one["speedup"] for name, one in found.items()} == {"vanilla": 1.0, "small": 1.0}
    assert (tmp_path / "out" / "two_processes.png").is_file()
    with pytest.raises(KeyboardInterrupt):  # all were recorded: from the first one on, with whatever settings
        two_processes.main(["--work", str(tmp_path), "--count", "21"])
    assert "measured before" not in capsys.readouterr().out.rpartition("wrote ")[2]


def test_one_process_at_a_time_draws_a_system(tmp_path: Path) -> None:
    one, other = SystemRun(tmp_path, NIRVANA), SystemRun(tmp_path, NIRVANA)
    with one.alone(wait=False) as alone, other.alone(wait=False) as second:
        assert (alone, second) == (True, False)
    with other.alone(wait=True) as alone:
        assert alone


def test_a_quality_run_without_throughputs_says_so_before_it_draws(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--throughput: no two_models\.json"):
        quality.main(["--throughput", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(tmp_path)])
    assert not (tmp_path / "work").exists()
