"""`afterimage replay` on the shipped trace: the folder it leaves, and what it says when it is asked wrongly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.replay.policy import shipped
from services.replay.simulated.bound import ROUNDS, TIGHTENING_ROUNDS
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.runtime import progress as remaining
from tests.studies import written
from tests.unit.cli.replays.conftest import TRACE


def run(tmp_path: Path, *options: str, **keys: Any) -> str:
    """Replay the trace with these options and a study of these keys."""
    kept = str(tmp_path / "embeddings")
    command = ["replay", TRACE, "--limit", "300", "--out", str(tmp_path / "out"), "--embeddings", kept]
    study = ["--config", written(tmp_path / "study.toml", **keys)] if keys else []
    result = CliRunner().invoke(app, [*command, *options, *study], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("plotted")
def test_one_command_leaves_a_folder_that_compares(tmp_path: Path) -> None:
    policies = ("none", "exact", "nirvana-without-predictor", "flexcache", "infinite")
    said = run(tmp_path, policies=policies, states=[100, 400], warmup=60)
    assert "offline bound" in said
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert tuple(summary["policies"]) == policies
    assert summary["policies"] == summary["budgets"][0]["policies"]
    for budget in summary["budgets"]:
        for name, one in budget["policies"].items():
            assert sum(one["k_histogram"].values()) == one["requests"] == 240
            hits = 240 - one["k_histogram"].get("0", 0)
            assert one["hit_rate"] == pytest.approx(hits / 240)
            assert one["bytes"] <= one["room"] == budget["max_bytes"] or name == "infinite"
            assert one["decisions_per_s"] > 0
            assert one["bounded"] == (name != "exact")  # whole pictures are no states
            assert len(one["parts"]) == 10
            if one["bounded"]:
                assert one["steps_saved"] <= budget["bound"]["steps_saved"] + 1e-9
    assert summary["policies"]["none"]["hit_rate"] == 0
    assert summary["policies"]["infinite"]["steps_saved"] > summary["policies"]["flexcache"]["steps_saved"] > 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(name in page for name in policies)
    assert page.count("data:image/png") == len(list((tmp_path / "out").glob("*.png"))) == 12


def test_a_replay_into_a_file_says_how_far_each_stage_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remaining, "EVERY_S", 0.0)
    said = run(tmp_path, "--policies", "lru,flexcache", "--states", "100").splitlines()
    stages = [
        re.match(r"(.+): ([\d,]+) of ([\d,]+) \(([\d.]+)%\), .+ a (second|minute), .+ left$", line) for line in said
    ]
    ended = {found[1]: found[3] for found in stages if found and found[2] == found[3] and found[4] == "100.0"}
    assert ended.keys() == {"embeddings", "neighbours", "lru", "flexcache", "offline bound"}
    assert (ended["lru"], ended["offline bound"]) == ("300", str(ROUNDS + TIGHTENING_ROUNDS))
    notes = [line for line in said if line.endswith(" …")]
    assert notes[:2] == [
        "preparing: the trace sessions_1200.jsonl …", "preparing: 300 requests, their embeddings and neighbours …",
    ]  # fmt: skip


def test_the_second_run_encodes_nothing(tmp_path: Path) -> None:
    given: dict[str, Any] = {"policies": ["lru"], "bytes": [4_000_000], "bound": False}
    run(tmp_path, **given)
    run(tmp_path, **given)
    timings = json.loads((tmp_path / "out" / "summary.json").read_text())["timings"]
    assert timings["encoded"] == 0
    assert timings["neighbours_kept"]


def test_what_a_killed_replay_had_finished_is_taken_over_and_said(tmp_path: Path) -> None:
    given: dict[str, Any] = {"policies": ["lru-hits", "afterimage"], "states": [100], "bound": False}
    study = ("--config", written(tmp_path / "killed.toml", **given))
    where = ("--limit", "300", "--out", str(tmp_path / "out"), "--embeddings", str(tmp_path / "embeddings"))
    killed = subprocess.Popen([sys.executable, "-m", "services", "replay", TRACE, *where, *study])
    try:
        until = time.monotonic() + 120
        while not [path for path in tmp_path.glob("embeddings/*/decided-*.npz") if ".part" not in path.name]:
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        killed.kill()
        killed.wait()
    said = " ".join(run(tmp_path, **given).split())
    assert "Decisions of an earlier run were reused (--anew decides again): lru-hits at 100" in said
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["taken_over"][0] == {"policy": "lru-hits", "states": 100}
    assert "of an earlier run" not in run(tmp_path, "--anew", **given)
    again = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert again["taken_over"] == []
    for name in ("lru-hits", "afterimage"):
        assert again["policies"][name]["k_histogram"] == summary["policies"][name]["k_histogram"]


def test_the_page_says_all_that_was_found(tmp_path: Path) -> None:
    run(tmp_path, policies=["nirvana", "lru-hits"], states=[200], warmup=50)
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    page = (tmp_path / "out" / "index.html").read_text()
    nirvana, lru = (summary["policies"][name] for name in ("nirvana", "lru-hits"))
    asked = nirvana["predictor"]
    assert lru["predictor"] is None
    assert asked["both"] == 250 - nirvana["k_histogram"]["0"]  # who is not let through starts from noise
    assert asked["precision"] == pytest.approx(asked["both"] / asked["let_through"])
    assert asked["recall"] == pytest.approx(asked["both"] / asked["would_hit"])
    assert f"<td>{asked['let_through']}</td><td>{asked['would_hit']}</td><td>{asked['both']}</td>" in page
    assert f"<td>{asked['precision']:.2%}</td><td>{asked['recall']:.2%}</td>" in page
    fair = lru["fairness"]
    assert 0 < fair["jain"] <= 1
    assert f"<td>{fair['jain']:.3f}</td><td>{fair['without_any']:.1%}</td>" in page
    assert f"{fair['users']} users, who asked {fair['requests']:.0%} of the requests" in page
    assert f"<td>{lru['k_histogram']['0'] / 250:.1%}</td>" in page
    assert f"<td>{lru['reuse_age_s']['0.9']:,.0f}</td>" in page
    assert f"<td>{lru['evictions']}</td><td>{lru['states']}</td><td>{lru['bytes'] / 1e6:.1f}</td>" in page
    assert "under this one arrival pattern (Poisson arrivals" in page
    assert all(f"&quot;{name}&quot;" in page for name in ("machine", "versions", "cores", "seed", "taken_over"))


def test_two_policies_of_one_folder_side_by_side(tmp_path: Path) -> None:
    run(tmp_path, "--policies", "lru-hits,none,fifo", "--states", "100,200")
    folder = str(tmp_path / "out")

    def beside(*given: str) -> str:
        return CliRunner().invoke(app, ["replay", "--compare", *given], catch_exceptions=False).output

    said = beside(f"{folder}:none", f"{folder}:lru-hits", f"{folder}:fifo")
    budgets = json.loads((tmp_path / "out" / "summary.json").read_text())["budgets"]
    for budget in budgets:
        for name in ("lru-hits", "fifo"):
            figures = budget["policies"][name]
            rows = [line for line in said.splitlines() if f"none, {name} " in line and f" {budget['states']} " in line]
            steps, hits = rows
            assert " hits " in hits
            assert f"{figures['hit_rate']:+.2%}" in hits  # beside nothing, all that it hits
            assert f"{figures['steps_saved']:+.2%}" in steps
            low, high = figures["steps_saved_95"]
            assert f"{low:+.2%} to {high:+.2%}" in steps  # and its own interval
    for given, wrong in (
        ((f"{folder}:none", f"{folder}:lfu"), "has no policy 'lfu'; it has lru-hits, none, fifo"),
        ((f"{folder}:none", folder), r"a policy with each folder \(FOLDER:POLICY\), or with none"),
        ((f"{folder}:none",), "two or more of FOLDER"),
        ((f"{folder}/nowhere:none", f"{folder}:none"), "nowhere: no summary.json"),
    ):
        with pytest.raises(AfterimageError, match=wrong):
            beside(*given)


def test_two_replays_side_by_side(tmp_path: Path) -> None:
    for folder, table in (("a", "nirvana"), ("b", "")):
        run(tmp_path / folder, policies=["lru-hits", "none"], states=[200], table=table)
    both = [str(tmp_path / folder / "out") for folder in ("a", "b")]
    shown = CliRunner().invoke(app, ["replay", "--compare", *both], catch_exceptions=False).output
    shares = [json.loads((Path(one) / "summary.json").read_text())["policies"]["lru-hits"] for one in both]
    assert all(f"{share['steps_saved']:.2%}" in shown for share in shares)
    assert shares[0]["steps_saved_95"][0] < shares[0]["steps_saved"] < shares[0]["steps_saved_95"][1]
    assert shown.count("Poisson arrivals") == 1
    three = CliRunner().invoke(app, ["replay", "--compare", *both, both[0]], catch_exceptions=False).output
    assert three.startswith(shown.rstrip())
    unwrapped = "".join(three.split())  # the console may wrap inside a long path
    assert f"{both[0]}and{both[0]}" in unwrapped
    run(tmp_path / "c", policies=["lru-hits"], states=[200], warmup=50)
    with pytest.raises(AfterimageError, match="warmup differs"):
        CliRunner().invoke(app, ["replay", "--compare", both[0], str(tmp_path / "c" / "out")], catch_exceptions=False)
    run(tmp_path / "d", policies=["lru-hits"], entries=[200])
    with pytest.raises(AfterimageError, match=r"budgets in states, .* in entries"):
        CliRunner().invoke(app, ["replay", "--compare", both[0], str(tmp_path / "d" / "out")], catch_exceptions=False)
    (Path(both[1]) / "decisions.npz").unlink()
    with pytest.raises(AfterimageError, match=r"no decisions\.npz with each request's start"):
        CliRunner().invoke(app, ["replay", "--compare", *both], catch_exceptions=False)
    with pytest.raises(AfterimageError, match="two or more of FOLDER"):
        CliRunner().invoke(app, ["replay", "--compare", both[0]], catch_exceptions=False)


@pytest.mark.parametrize(
    ("given", "keys", "said"),
    [
        ((), {"states": [100], "virtual_time": {"workers": 2}, "real": {}}, "real: .* virtual_time"),
        ((), {"states": [100], "one_at_a_time": True}, "one_at_a_time: no such key"),
        ((), {"states": [100], "model": "bundled:large"}, "model: needs real or trace_steps"),
        ((), {"states": [100], "virtual_time": {"workers": 2, "profile": "nowhere.json"}}, "no measured latency"),
        ((), {}, "states, bytes or entries"),
        ((), {"states": [9], "entries": [9]}, "one of them"),
        (("--states", "1,x"), {}, "numbers from 1 on"),
        ((), {"bytes": [10]}, "bytes: must be at least"),
        (("--states", "9", "--policies", "lru,lru"), {}, "each once"),
        (("--states", "9", "--policies", "modn"), {}, "modm, "),
        ((TRACE, "--states", "9"), {}, "name one trace"),
        ((), {"states": [9], "warmup": 1200}, "below the 1,200"),
        ((), {"states": [9], "table": "nowhere.json"}, "no such file"),
    ],
)
def test_what_is_asked_wrongly_is_said(tmp_path: Path, given: tuple[str, ...], keys: dict[str, Any], said: str) -> None:
    study = ["--config", written(tmp_path / "study.toml", **keys)] if keys else []
    with pytest.raises(AfterimageError, match=said):
        CliRunner().invoke(app, ["replay", TRACE, *given, *study], catch_exceptions=False)


def test_every_shipped_policy_says_where_it_is_from() -> None:
    from services.replay.policy import read_policy

    assert {"none", "exact", "retrieval", "nirvana", "flexcache", "fifo", "infinite"} <= set(shipped())
    assert all(read_policy(name).title and read_policy(name).source for name in shipped())


def test_a_seed_below_zero_is_refused() -> None:
    given = ["replay", TRACE, "--states", "9", "--seed", "-1"]
    with pytest.raises(InvalidRequestError, match=r"^seed: "):
        CliRunner().invoke(app, given, catch_exceptions=False)


@pytest.mark.usefixtures("plotted")
def test_virtual_time_reports_latency_and_slo(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text('{"step_s": {"1": 0.02, "8": 0.08}, "decode_s": 0.01}')
    workers = {"workers": 2, "profile": str(tmp_path / "latency.json")}
    policies = ["none", "flexcache", "modm-cache-all"]
    said = run(tmp_path, policies=policies, states=[200], rate_per_s=3, virtual_time=workers)
    assert "in 2× alone" in said
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    timed = {name: one["timed"] for name, one in summary["policies"].items()}
    assert all(one["latency_s"]["p50"] > 0.1 and 0 < one["busy"] <= 1 for one in timed.values())
    assert timed["flexcache"]["latency_s"]["mean"] < timed["none"]["latency_s"]["mean"]
    assert timed["none"]["slo_s"] == {"2": pytest.approx(2.02), "4": pytest.approx(4.04)}
    assert summary["budgets"][0]["bound"] is None
    assert summary["settings"]["fleet"]["workers"] == 2
    page = (tmp_path / "out" / "index.html").read_text()
    assert "requests a second in virtual time" in page
    assert "surrogate" in page
    assert (tmp_path / "out" / "latency_200.png").stat().st_size > 0


def test_equal_entries(tmp_path: Path) -> None:
    said = run(tmp_path, entries=[20], policies=["flexcache", "modm"])
    assert "modm (surrogate)" in said
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["budgets"][0]["of"] == "entries"
    assert [one["states"] for one in summary["policies"].values()] == [20, 20]
    assert [one["surrogate"] for one in summary["policies"].values()] == [False, True]
    assert "<td>modm (surrogate): MoDM, cache-all" in (tmp_path / "out" / "index.html").read_text()
    assert not any(one["bounded"] for one in summary["policies"].values())
