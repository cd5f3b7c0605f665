"""The session trace on a running service with a denoiser that costs nothing: three ways, judged, and resumable."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.measuring.judging import Verdict, look_against
from bench.session_trace import Phase, main, trace_rows
from bench.traced.trace_figures import paired
from load.sessions import MAIN_SIZE, SHIPPED
from shared.domain.errors import ConfigurationError
from shared.models.quality import BOUNDS
from shared.runtime.settings import Settings
from tests.tiny import build


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return build(tmp_path / "models")


def test_three_ways_end_in_one_record_and_are_not_drawn_twice(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, out = tmp_path / "work", tmp_path / "results"
    command = [
        "--large", "noop:?step_ms=0", "--encoder", str(models / "clip"), "--count", "12", "--block", "5",
        "--think-s", "0.05", "--work", str(work), "--out", str(out), "--judge", str(tmp_path / "no judge"),
    ]  # fmt: skip
    main(command)
    first = json.loads((out / "session_trace.json").read_text())["figures"]
    assert first["requests"] == 12
    assert sum(first["k_histogram"].values()) + first["exact_repeats"] == 12
    assert first["hits"] == sum(n for k, n in first["k_histogram"].items() if k != "0")
    assert first["steps_run"] <= first["steps_asked"]
    hits = {index for index, answer in Phase(work, "cache").answers().items() if answer.hit}
    assert set(Phase(work, "fewer_steps").answers()) == hits
    assert hits
    for name in ("cache", "no_cache"):
        assert len(Phase(work, name).answers()) == 12
        assert len(json.loads((work / name / "seconds.json").read_text())) == 3  # sittings: 5, 5 and 2 rows
    assert {answer.source for answer in Phase(work, "no_cache").answers().values()} == {"noise"}
    assert first["look_against_noise"]["pictures"] == first["hits"]
    assert sum(one["images"] for one in first["by_relation"].values()) == 12 - first["exact_repeats"]
    by_k = [k for one in first["by_relation"].values() for k in one["k_of_t"] if not k.startswith("0 ")]
    assert set(by_k) == first["similarity_by_k"].keys()
    assert first["quality"].keys() == BOUNDS.keys()
    assert first["quality"]["contrast"]["count"] == first["hits"]
    printed = capsys.readouterr().out
    assert "12 of 12 rows" in printed
    assert re.search(r"from noise: saturation \S+, contrast \S+, edges \S+; \S+ have less contrast", printed)
    main(command)
    assert "of 12 rows" not in capsys.readouterr().out
    assert json.loads((out / "session_trace.json").read_text())["figures"]["k_histogram"] == first["k_histogram"]


def test_with_auto_the_plan_chooses_t_beside_the_default_t_from_noise(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "--encoder", str(models / "clip"), "--count", "6", "--steps", "auto", "--think-s", "0.05",
        "--out", str(tmp_path), "--judge", str(tmp_path / "no judge"),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="model 'noop' lists no auto_steps"):
        main(["--large", "noop:?step_ms=0", *command])
    main(["--large", "noop:?step_ms=0&auto_steps=10,50", *command])
    figures = json.loads((tmp_path / "session_trace_auto.json").read_text())["figures"]
    work = tmp_path / "out/bench/session_trace_auto"
    assert {one.run_of for one in Phase(work, "no_cache").answers().values()} == {50}
    assert {one.run_of for one in Phase(work, "cache").answers().values()} <= {10, 50}
    assert sum(one["images"] for one in figures["by_relation"].values()) == 6 - figures["exact_repeats"]


def test_a_paler_picture_has_less_of_everything_that_no_judge_sees() -> None:
    rng = np.random.default_rng(4)
    plain = [rng.integers(0, 256, (16, 16, 3)) for _ in range(4)]
    grey = [(128 + (pixels - 128) / 2).astype(int) for pixels in plain]
    own, noise = ({n: png(pixels) for n, pixels in enumerate(some)} for some in ([*grey[:3], plain[3]], plain))
    paler = look_against(range(3), own, noise)
    assert (paler["pictures"], paler["less_contrast"]) == (3, 1.0)
    assert [paler["contrast"], paler["edges"]] == pytest.approx([0.5, 0.5], abs=0.02)
    assert 0.2 < paler["saturation"] < 0.8
    same = look_against([3, 9], own, noise)  # nothing was drawn of 9
    assert same == {"pictures": 1, "saturation": 1.0, "contrast": 1.0, "edges": 1.0, "less_contrast": 0.0}
    assert look_against([9], own, noise) == {"pictures": 0}


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_a_phase_broken_off_knows_what_it_has(tmp_path: Path) -> None:
    phase = Phase(tmp_path, "cache")
    assert phase.answers() == {}
    phase.sat(1.5, 2.5, 1)
    phase.sat(2.5, 3.5, 3)
    assert Phase(tmp_path, "cache").each() == (1.0, 1.5)


def test_sizes_the_model_cannot_draw_become_the_main_size(models: Path) -> None:
    settings = Settings(large=str(models / "large"))
    rows, changed = trace_rows(SHIPPED, 50, settings, main_size_only=False)
    assert changed == 0  # the tiny model draws every multiple of eight
    assert {(row.width, row.height) for row in rows} > {MAIN_SIZE}
    rows, changed = trace_rows(SHIPPED, 50, settings, main_size_only=True)
    assert {(row.width, row.height) for row in rows} == {MAIN_SIZE}
    assert changed > 0


def test_pair_by_pair_counts_where_only_one_came_out() -> None:
    right, wrong = Verdict(1.0, {"object": True, "light": True}), Verdict(1.0, {"object": True, "light": False})
    ours = {0: right, 1: right, 2: wrong, 3: right, 4: wrong, 5: Verdict(1.0), 6: right}
    theirs = {0: right, 1: wrong, 2: right, 3: wrong, 4: wrong, 5: right}
    found = paired(range(9), ours, theirs)  # 5 was not judged, 6 has no pair
    assert (found["pictures"], found["ours_alone"], found["theirs_alone"]) == (5, 2, 1)
    assert found["difference"] == pytest.approx(0.2)
    assert found["half_interval"] == pytest.approx(1.96 * (3 - 1 / 5) ** 0.5 / 5)
    assert found["p"] == 1.0
    ten = dict.fromkeys(range(10), right)
    assert paired(range(10), ten, dict.fromkeys(range(10), wrong))["p"] == pytest.approx(2 / 2**10)
    assert paired([6], ours, theirs) == {"pictures": 0}
