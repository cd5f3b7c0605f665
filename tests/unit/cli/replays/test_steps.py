"""`afterimage replay` on a trace whose requests name their own number of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from shared.domain.errors import AfterimageError
from tests.studies import written
from tests.unit.cli.replays.conftest import TRACE


def mixed(tmp_path: Path, most: int = 150) -> str:
    """The shipped trace, whose requests take 20, 50, 75 or `most` steps in turn."""
    rows = [json.loads(line) for line in Path(TRACE).read_text(encoding="utf-8").splitlines()]
    asked = (20, 50, 75, most)
    path = tmp_path / f"mixed{most}.jsonl"
    path.write_text("".join(json.dumps({**row, "steps": asked[at % 4]}) + "\n" for at, row in enumerate(rows)))
    return str(path)


def test_each_request_may_take_the_traces_own_t(tmp_path: Path) -> None:
    trace, kept = mixed(tmp_path), str(tmp_path / "embeddings")
    given: dict[str, Any] = {
        "limit": 300, "warmup": 60, "states": [10, 600], "policies": ["lru-hits", "infinite", "modm"],
    }  # fmt: skip

    def replayed(name: str, **keys: Any) -> dict[str, Any]:
        study = written(tmp_path / f"{name}.toml", traces=[trace], **given, **keys)
        command = ["replay", "--config", study, "--embeddings", kept, "--out", str(tmp_path / name)]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        summary: dict[str, Any] = json.loads((tmp_path / name / "summary.json").read_text(encoding="utf-8"))
        return summary

    alike, own = replayed("alike"), replayed("own", trace_steps=True)
    assert alike["settings"]["steps"] == 50
    assert own["settings"]["steps"] is None
    assert own["settings"]["schedule"].startswith("large (ddim:")
    assert own["trace"]["steps"] == {"least": 20, "mean": pytest.approx(73.75), "most": 150}
    with np.load(tmp_path / "own" / "decisions.npz") as made:
        asked = made["steps"]
        assert asked.tolist() == [20, 50, 75, 150] * 60
        for budget in own["budgets"]:
            for name, one in budget["policies"].items():
                starts = made[f"{budget['states']}/{name}"]
                assert one["steps_saved"] == pytest.approx(starts.sum() / asked.sum())
                assert 0 < one["hit_rate"] < 1 or name == "modm"
                assert not one["bounded"] or one["steps_saved"] <= budget["bound"]["steps_saved"] + 1e-9
    infinite = own["policies"]["infinite"]["steps_saved"]
    assert infinite <= own["budgets"][0]["bound"]["infinite"] + 1e-9
    assert 0 < own["budgets"][0]["bound"]["steps_saved"] <= own["budgets"][0]["bound"]["infinite"]
    assert "Each request takes the trace's own T" in (tmp_path / "own" / "index.html").read_text(encoding="utf-8")
    timed = replayed("timed", trace_steps=True, virtual_time={"workers": 2, "profile": str(latency(tmp_path))})
    assert timed["policies"]["lru-hits"]["timed"]["slo_s"] == {"2": None, "4": None}
    beside = ["replay", "--compare", str(tmp_path / "own"), str(tmp_path / "timed")]
    shown = CliRunner().invoke(app, beside, catch_exceptions=False).output
    assert f"{own['policies']['lru-hits']['steps_saved']:.2%}" in shown
    with pytest.raises(AfterimageError, match=r"different requests .steps differ"):
        CliRunner().invoke(app, [*beside[:3], str(tmp_path / "alike")], catch_exceptions=False)


def latency(tmp_path: Path) -> Path:
    path = tmp_path / "latency.json"
    path.write_text('{"step_s": {"1": 0.02, "8": 0.08}, "decode_s": 0.01}')
    return path


def test_steps_that_the_model_would_refuse_are_named_with_their_line(tmp_path: Path) -> None:
    given = ("--config", written(tmp_path / "study.toml", states=[9], trace_steps=True))
    with pytest.raises(
        AfterimageError, match=r"line 4, field 'steps': must be a whole number .* from 1 to 200 .*'300'"
    ):
        CliRunner().invoke(app, ["replay", mixed(tmp_path, 300), *given], catch_exceptions=False)
    (tmp_path / "none.csv").write_text("prompt,user\na,b\n")
    with pytest.raises(AfterimageError, match="needs a column 'steps'; it has prompt, user"):
        CliRunner().invoke(app, ["replay", str(tmp_path / "none.csv"), *given], catch_exceptions=False)
