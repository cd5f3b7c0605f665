"""Study files: what is wrong with one is said with key, rule and value, and each recorded replay has its own."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.replays.replay_days import REPLAY, STUDIES
from services.cli.app import app
from services.replay.policy import read_policy
from services.replay.study_file import TABLES, Study, read_study
from shared.domain.errors import ConfigurationError, InvalidRequestError
from tests.studies import written

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "replay.md"
TRACE = str(ROOT / "load" / "traces" / "sessions_1200.jsonl")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rate": 2}, "rate: no such key; did you mean rate_per_s\\? \\(got '2'\\)"),
        ({"xyz": 2}, "xyz: no such key; docs/replay.md lists them all"),
        ({"virtual_time": {"worker": 2}}, "virtual_time.worker: no such key; did you mean workers"),
        ({"real": {"rows": 2}}, "real.rows: no such key; did you mean max_rows"),
        ({"warmup": -1}, "warmup: .*greater than or equal to 0 \\(got '-1'\\)"),
        ({"states": [100, 0]}, "states.1: .*greater than or equal to 1 \\(got '0'\\)"),
        ({"virtual_time": {"workers": 0}}, "virtual_time.workers: .*greater than or equal to 1"),
        ({"traces": ["a.csv", "b/a.csv"]}, "traces: must be files of different names"),
        ({"entries": [3]}, "states: give states, bytes or entries, one of them \\(got 'states, entries'\\)"),
    ],
)
def test_a_wrong_study_is_named_with_key_rule_and_value(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    path = written(tmp_path / "study.toml", **({"states": [10]} | keys))
    with pytest.raises(ConfigurationError, match=f"study .*study.toml: {said}"):
        read_study(Path(path), {})
    with pytest.raises(InvalidRequestError, match=f"^{said}"):
        read_study(None, {"states": [10]} | keys)


@pytest.mark.parametrize("text", ["states = [", "\\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    for name, said in (("study.toml", "cannot be read as TOML"), ("nowhere.toml", "no such file")):
        with pytest.raises(ConfigurationError, match=f"study .*{name}: {said}"):
            read_study(tmp_path / name, {})


def test_what_is_typed_wins_over_the_file(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "study.toml", entries=[5], seed=3, limit=10, policies=["lru"]))
    study = read_study(path, {"states": [7], "limit": 20})
    assert (study.states, study.entries, study.limit, study.seed) == ((7,), (), 20, 3)


def test_a_study_of_two_traces_leaves_two_folders(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(Path(TRACE).read_text().splitlines(keepends=True)[300:400]))
    keys = {"traces": [TRACE, str(other)], "policies": ["lru"], "states": [20], "limit": 60, "bound": False}
    command = ["replay", "--config", written(tmp_path / "two.toml", **keys), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--embeddings", str(tmp_path / "kept")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for name in ("sessions_1200", "other"):
        summary = json.loads((tmp_path / "out" / name / "summary.json").read_text())
        assert (summary["trace"]["requests"], list(summary["policies"])) == (60, ["lru"])


def test_every_recorded_replay_has_a_study() -> None:
    assert {path.parent.name for path in REPLAY.glob("*/summary.json")} == set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_recorded_replay_is_what_its_study_asks_for(name: str) -> None:
    study = read_study(REPLAY / name / "study.toml", {})
    summary = json.loads((REPLAY / name / "summary.json").read_text())
    settings, budgets = summary["settings"], summary["budgets"]
    assert list(study.of_policies) == list(settings["policies"]) == list(summary["policies"])
    assert all(read_policy(policy) for policy in study.of_policies.values())
    assert [one["states"] for one in budgets] == [*(study.entries or study.states)]
    assert {one["of"] for one in budgets} == {"entries" if study.entries else "states"}
    assert [trace.name for trace in study.traces] == [summary["trace"]["name"]]
    alike = ("skip", "limit", "seed", "neighbours")
    assert [getattr(study, key) for key in alike] == [settings[key] for key in alike]
    assert study.honour_sizes == settings["sizes_honoured"]
    assert (study.encoder or "bundled:clip") == summary["encoder"]["name"]
    assert study.bound or not any(one["bound"] for one in budgets)
    if study.warmup is not None:
        assert study.warmup == summary["trace"]["warmup"]
    assert f"{study.rate_per_s:g} requests" in summary["trace"]["arrivals"] or not study.rate_per_s
    fleet, timed = settings["fleet"], study.virtual_time
    assert bool(fleet) == bool(timed)
    if fleet and timed:
        assert (fleet["workers"], fleet["max_rows"]) == (timed.workers, timed.max_rows)
        assert timed.profile == f"bundled:{fleet['profile']['model']}"


def test_the_page_lists_every_key_and_shows_studies_that_can_be_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| key of a study |") :].partition("\n\n")[0]
    listed = [
        key for first in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for key in re.findall("`(.+?)`", first)
    ]
    keys = [f"{name}.{key}" for name, model in TABLES.items() for key in model.model_fields]
    assert sorted(listed) == sorted([*(key for key in Study.model_fields if key not in TABLES), *keys])
    shown = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(shown) >= 2
    assert all(Study.model_validate(tomllib.loads(one)).traces for one in shown)
