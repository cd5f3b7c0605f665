"""`afterimage replay` on real models serves what it decides, and goes on where it was broken off."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.embedded import embedded
from services.cli.replays import real as replay_real
from services.gpu_worker.jobs.codecs import encode_state
from shared.domain.errors import AfterimageError
from shared.runtime import animated_png
from shared.runtime.clock import Clock
from shared.runtime.settings import Settings
from shared.service import Running
from tests import tiny_clips
from tests.studies import written
from tests.tiny_segmenters import tiny_clipseg

ASKED = (
    ("ana", "a red fox in the snow"),
    ("ana", "a red fox in the snow at night"),
    ("ben", "three blue hats in a city"),
    ("ana", "a red fox in the snow"),
    ("ben", "two blue hats in a city"),
    ("cleo", "a green boat on the beach at sunset"),
    ("ana", "a red fox in the snow at night"),
    ("ben", "three blue hats in a city"),
    ("ana", "a large red fox in the snow"),
    ("cleo", "a green boat on the beach"),
    ("ben", "a red fox in the snow"),
    ("ben", "two blue hats in a city at night"),
)
ALIKE: dict[str, Any] = {"states": [12], "warmup": 2, "table": "nirvana"}
NOOP = {"model": "noop:?step_ms=1", "real": {}}
Open = Callable[[Settings, Clock | None], AbstractAsyncContextManager[Running]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [{"prompt": text, "user": user, "arrival_s": 3.0 * at} for at, (user, text) in enumerate(ASKED)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replay(trace: Path, out: Path, *options: str, code: int = 0, plots: bool = False, **keys: Any) -> dict[str, Any]:
    """Run the command and return its summary; without plots as where matplotlib is not installed, in half the time."""
    study = written(trace.parent / "study.toml", **(ALIKE | keys))
    command = ["replay", str(trace), "--config", study, "--out", str(out), *options]
    with pytest.MonkeyPatch.context() as patch:
        if not plots:
            patch.setitem(sys.modules, "matplotlib", None)
        result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == code, result.output
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return summary


def test_served_one_at_a_time_decides_as_decisions_alone(trace: Path, tmp_path: Path, tiny: Path) -> None:
    policies = ("--policies", "lru-hits,afterimage")
    given: dict[str, Any] = {"model": str(tiny / "large"), "real": {"one_at_a_time": True}}
    real = replay(trace, tmp_path / "real", *policies, plots=True, **given)
    kept = ("--embeddings", str(tmp_path / "embeddings"))
    alone = replay(trace, tmp_path / "alone", *policies, *kept, bound=False)
    with np.load(tmp_path / "real" / "decisions.npz") as ours, np.load(tmp_path / "alone" / "decisions.npz") as theirs:
        assert set(ours) == set(theirs) == {"users", "12/lru-hits", "12/afterimage"}
        assert all(ours[key].tolist() == theirs[key].tolist() for key in ours)
        assert not np.array_equal(ours["12/lru-hits"], ours["12/afterimage"])
    for name, one in real["policies"].items():
        same = ("hit_rate", "steps_saved", "k_histogram", "evictions", "states", "reuse_age_s", "own_user", "requests")
        assert {key: one[key] for key in same} == {key: alone["policies"][name][key] for key in same}
        assert 0 < one["hit_rate"] < 1
        assert one["evictions"] > 5
        assert one["bytes"] <= one["room"] == real["budgets"][0]["max_bytes"]
        assert one["decisions_per_s"] is None
        assert one["real"]["steps_run"] == 50 * 10 - round(50 * 10 * one["steps_saved"])
        assert all(-1 <= one["real"]["clip"][group] <= 1 for group in ("all", "hits", "misses"))
        assert len(list((tmp_path / "real" / real["pictures"][name]).glob("*.png"))) == len(ASKED)
    page = (tmp_path / "real" / "index.html").read_text(encoding="utf-8")
    assert "one at a time on real models" in page
    assert "Images generated over gRPC" in page
    assert (tmp_path / "real" / "pictures.png").stat().st_size > 0
    both = [str(tmp_path / name) for name in ("real", "alone")]
    shown = CliRunner().invoke(app, ["replay", "--compare", *both], catch_exceptions=False).output
    assert "+0.00% to +0.00%" in shown


def test_each_request_is_asked_in_the_traces_own_steps(trace: Path, tmp_path: Path) -> None:
    asked = [50, 20, 10, 40, 25, 50, 20, 100, 50, 10, 20, 50]
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({**row, "steps": t}) + "\n" for row, t in zip(rows, asked, strict=True)))
    given: dict[str, Any] = {"policies": ["lru-hits", "none"], "trace_steps": True, "model": "noop:?step_ms=1"}
    real = replay(own, tmp_path / "real", real={"one_at_a_time": True}, **given)
    kept = ("--embeddings", str(tmp_path / "embeddings"))
    alone = replay(own, tmp_path / "alone", *kept, bound=False, **given)
    with np.load(tmp_path / "real" / "decisions.npz") as ours, np.load(tmp_path / "alone" / "decisions.npz") as theirs:
        assert ours["steps"].tolist() == theirs["steps"].tolist() == asked[2:]
        assert ours["12/lru-hits"].tolist() == theirs["12/lru-hits"].tolist()
        skipped = int(ours["12/lru-hits"].sum())
    served, plain = (real["policies"][name] for name in ("lru-hits", "none"))
    assert served["steps_saved"] == alone["policies"]["lru-hits"]["steps_saved"] == skipped / sum(asked[2:]) > 0
    assert served["real"]["steps_run"] == sum(asked[2:]) - skipped
    assert plain["real"]["steps_run"] == sum(asked[2:])
    assert real["settings"]["steps"] is None
    assert real["settings"]["real"]["alone_steps"] == 32
    assert served["timed"]["slo_s"] == {"2": None, "4": None}
    assert "steps as in the trace" in (tmp_path / "real" / "index.html").read_text(encoding="utf-8")


CLIPS = (
    ("ana", "a red fox in the snow"),
    ("ben", "a brown dog in a forest"),
    ("ana", "a red fox in a forest"),
    ("cleo", "a green boat on the beach"),
    ("ben", "a brown dog in the snow"),
    ("ana", "a red fox in the snow"),
    ("cleo", "a green boat in a forest"),
    ("ben", "a red fox on the beach"),
)


def test_clips_are_served_as_decided_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also pairs: each request waits for the masks of the clip before it."""
    monkeypatch.setenv("AFTERIMAGE_SEGMENTER", str(tiny_clipseg(tmp_path / "clipseg")))
    monkeypatch.setenv("AFTERIMAGE_SEGMENT_THRESHOLD", "0")
    trace, model = tmp_path / "clips.jsonl", str(tiny_clips.build(tmp_path / "models") / tiny_clips.CLIPS)
    rows = [
        {"prompt": text, "user": user, "arrival_s": 3.0 * at, "frames": 2, "steps": 10}
        for at, (user, text) in enumerate(CLIPS)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {"states": [1000], "warmup": 1, "model": model}
    given["policies"] = ["nirvana-video", "flexcache-video"]
    real = replay(trace, tmp_path / "real", real={"one_at_a_time": True, "steps": 10}, **given)
    kept = ("--embeddings", str(tmp_path / "embeddings"))
    alone = replay(trace, tmp_path / "alone", *kept, bound=False, trace_steps=True, **given)
    with np.load(tmp_path / "real" / "decisions.npz") as ours, np.load(tmp_path / "alone" / "decisions.npz") as theirs:
        assert set(ours) == set(theirs) == {"users", "steps", "1000/nirvana-video", "1000/flexcache-video"}
        assert all(ours[key].tolist() == theirs[key].tolist() for key in ours)
        hit = ours["1000/nirvana-video"] + ours["1000/flexcache-video"] > 0
    nirvana, flexcache = (real["policies"][name] for name in given["policies"])
    for name, one in real["policies"].items():
        same = ("hit_rate", "by_pairs", "steps_saved", "k_histogram", "states", "reuse_age_s", "own_user")
        assert {key: one[key] for key in same} == {key: alone["policies"][name][key] for key in same}
        assert one["real"]["failed"] == 0
        assert all(-1 <= one["real"]["clip"][group] <= 1 for group in ("all", "hits", "misses"))
    assert nirvana["by_pairs"] == 0 < flexcache["by_pairs"]
    latent = len(encode_state(np.zeros((4, 2, 16, 16), np.float32), "fp16"))
    assert nirvana["bytes"] == nirvana["states"] * latent
    folder = tmp_path / "real" / real["pictures"]["flexcache-video"]
    assert len(list(folder.glob("*.png"))) == len(CLIPS)
    assert animated_png.decode((folder / "000002.png").read_bytes()).shape == (2, 32, 32, 3)
    page = (tmp_path / "real" / "index.html").read_text(encoding="utf-8")
    assert "Clips of 2 frames generated over gRPC by clips" in page
    shown = re.findall(r'<img src="(pictures/[^"]+)"', page)
    assert all((tmp_path / "real" / place).is_file() for place in shown)
    assert 0 < hit.sum() < len(hit)
    assert {int(Path(place).stem) for place in shown} == {*(1 + np.flatnonzero(hit)).tolist()}
    assert " of 10</td>" in page
    assert not (tmp_path / "real" / "pictures.png").exists()


def breaking_off_at(count: int) -> tuple[Open, list[int]]:
    """Opens Afterimage until it is opened for the `count`-th time, which Ctrl-C ends; and how often it was opened."""
    opened: list[int] = []

    def start(settings: Settings, clock: Clock | None) -> AbstractAsyncContextManager[Running]:
        opened.append(settings.cache_max_bytes)
        if len(opened) == count:
            raise KeyboardInterrupt
        return embedded(settings, clock)

    return start, opened


def test_a_replay_that_is_broken_off_goes_on(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = NOOP | {"policies": ["none", "nirvana", "lru-hits"], "rate_per_s": 20}
    start, opened = breaking_off_at(2)
    monkeypatch.setattr(replay_real, "embedded", start)
    broken = replay(trace, tmp_path, code=130, **given)
    assert set(broken["policies"]) == {"none"}
    assert broken["left"] == ["nirvana (12 states)", "lru-hits (12 states)"]
    assert "not served: nirvana (12 states)" in (tmp_path / "index.html").read_text(encoding="utf-8")
    start, opened = breaking_off_at(0)
    monkeypatch.setattr(replay_real, "embedded", start)
    whole = replay(trace, tmp_path, **given)
    assert len(opened) == 2
    assert not whole["left"]
    assert whole["policies"]["none"]["timed"]["latency_s"] == broken["policies"]["none"]["timed"]["latency_s"]
    assert set(whole["policies"]) == {"none", "nirvana", "lru-hits"}
    again = replay(trace, tmp_path, **given)
    assert len(opened) == 2
    assert [one["policy"] for one in again["taken_over"]] == ["none", "nirvana", "lru-hits"]
    for other in (("--seed", "1"), ("--anew",)):
        replay(trace, tmp_path, "--policies", "none", *other, **given)  # options win over the study
    assert len(opened) == 4


def test_arrivals_are_kept_and_latency_counts_from_them(trace: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "noop:?step_ms=4", "policies": ["none", "lru-hits"], "rate_per_s": 1000}
    summary = replay(trace, tmp_path, real={"max_rows": 1}, **given)
    plain, cached = (summary["policies"][name] for name in ("none", "lru-hits"))
    assert (plain["hit_rate"], plain["evictions"], plain["states"]) == (0, 0, 0)
    assert plain["k_histogram"] == {"0": 10}
    for one in (plain, cached):
        timed, drawn = one["timed"], one["real"]
        assert timed["offered_per_s"] > 100 > timed["served_per_s"] > 0
        # one row and all at once: the last waits for all others
        assert timed["latency_s"]["p99"] > 5 * drawn["alone_s"] > 5 * 50 * 0.004
        assert timed["queued_s"]["p99"] < timed["latency_s"]["p99"] <= drawn["wall_s"]
        assert timed["slo_s"]["4"] == pytest.approx(2 * timed["slo_s"]["2"])
        assert drawn["processor_s"] > 0
        assert drawn["failed"] == 0
    assert plain["timed"]["slo"]["2"] < 1
    assert cached["real"]["clip_against"]["policy"] == "none"
    assert summary["settings"]["real"]["max_rows"] == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"policies": ["none", "gdsf"]},
            r"policy 'gdsf': cannot .* not by gdsf; .*afterimage",
        ),
        ({"policies": ["modm"]}, r"policy 'modm': cannot .*profile --images-from"),
        ({"honour_sizes": True}, r"honour_sizes: .* \(got '512x512'\)"),
        ({"trace_steps": True}, r"needs a column 'steps'; it has prompt, user, arrival_s"),
        ({"policies": ["flexcache-video"]}, "only clips have pairs, and the trace has images"),
        ({"policies": ["modm"], "frames": 4, "model": "bundled:motion"}, "policy 'modm': .*start from latents alone"),
        ({"frames": 4}, "video: names no model, and the trace has clips of 4 frames"),
        ({"frames": 65, "model": "bundled:motion"}, "frames: model 'motion' generates from 1 to 64 frames"),
        ({"real": {"steps": 201}}, r"real.steps: model 'large' takes at most 200 steps.* \(got '201'\)"),
        ({"real": {"steps": 9}, "trace_steps": True}, "real.steps: excludes trace_steps"),
        ({"states": [], "entries": [5]}, "entries: excludes real"),
        ({"virtual_time": {"workers": 2}}, "real: excludes virtual_time"),
        ({"model": "nowhere"}, "model 'nowhere'"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_drawn(
    trace: Path, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(AfterimageError, match=said):
        replay(trace, tmp_path / "out", **({"policies": ["none"], "real": {}} | keys))
    assert not (tmp_path / "out").exists()
