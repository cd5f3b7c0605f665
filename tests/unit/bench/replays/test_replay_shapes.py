"""The papers' figures beside the replays': the numbers, the replays left out, and the places of the tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.measuring.marks import placed, places
from bench.replays import replay_shapes as bench
from bench.replays.replay_days import REPLAY
from bench.replays.shapes import (
    BUDGETS,
    FIG_9,
    FIG_12,
    FIG_15,
    PAPERS,
    TABLE_1,
    at_least,
    over_stream,
    read_shape,
    rising,
    saved_at,
    throughput,
    within,
)
from services.replay.results.figures import AGES_S

PAPER = json.loads(PAPERS.read_text(encoding="utf-8"))
COMPARED = [policy for policies in TABLE_1.values() for policy in policies.values()]
PICTURES = {f"{name}.png" for name in bench.NAMES}


def figures(*, k5: int, k25: int, surrogate: bool = False, states: int = 40) -> dict[str, Any]:
    """An entry of summary.json: of 100 requests so many start at K = 5 and 25, one of them from what is days old."""
    old = [0] * (len(AGES_S) + 1)
    old[0], old[-1] = k5 + k25 - 1, 1
    return {
        "requests": 100,
        "surrogate": surrogate,
        "hit_rate": (k5 + k25) / 100,
        "steps_saved": (5 * k5 + 25 * k25) / 5000,
        "k_histogram": {"0": 100 - k5 - k25, "5": k5, "25": k25},
        "states": states,
        "reuse_age_histogram": old,
        "reuse_age_s": {"0.5": 90.0},
        "own_user": 0.75,
        "parts": [0.0] * 9 + [0.2],
        "hit_parts": [0.0] * 9 + [0.6],
    }


def summary(of: str, budgets: dict[int, dict[str, Any]]) -> dict[str, Any]:
    listed = [{"states": budget, "of": of, "policies": policies} for budget, policies in budgets.items()]
    return {"settings": {"steps": 50}, "budgets": listed}


@pytest.fixture
def replays(tmp_path: Path) -> Path:
    """Two budgets of states, the second without `nirvana`; one of entries; two pages with a place for each table."""
    one = figures(k5=30, k25=20)
    everyone = dict.fromkeys({*FIG_15, *COMPARED}, one) | {"infinite": figures(k5=40, k25=30, states=8000)}
    less = {name: each for name, each in everyone.items() if name != "nirvana"}
    pictures = {name: figures(k5=20, k25=10, surrogate=name.startswith("modm")) for name in FIG_9.values()}
    found = {
        "sizes_ignored": summary("states", {1000: everyone, 10_000: less}),
        "entries": summary("entries", {1000: pictures}),
        "baselines": summary("states", {1000: dict.fromkeys(FIG_12, one), 10_000: dict.fromkeys(FIG_12, one)}),
    }
    for folder, content in found.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "summary.json").write_text(json.dumps(content))
    marked = [
        f"<!-- {name}: written by python -m bench.replays.replay_shapes -->stale<!-- end of {name} -->"
        for name in PAPER
    ]
    (tmp_path / "README.md").write_text("before\n" + "\nbetween\n".join(marked[1:]) + "\nafter\n")
    (tmp_path / "baselines" / "README.md").write_text(marked[0])
    return tmp_path


def test_what_is_saved_at_each_k_adds_up_and_h_counts_from_there_on() -> None:
    one = figures(k5=30, k25=20)
    assert [at_least(one, k) for k in (5, 10, 25)] == pytest.approx([0.5, 0.2, 0.2])
    assert sum(saved_at(one, k, 50) for k in (5, 10, 15, 20, 25)) == pytest.approx(one["steps_saved"])
    assert within(one, 14_400) == pytest.approx(49 / 50)
    assert rising({"LRU": 0.2, "FIFO": 0.1, "LRBU": 0.2001}) == "FIFO < LRU = LRBU"


def test_throughput_over_the_stream_is_the_inverse_of_the_steps_run() -> None:
    one = figures(k5=30, k25=20)
    assert over_stream(one)[0] == (0.0, 1.0)
    assert list(over_stream(one)[-1]) == pytest.approx([0.6, 1.25])
    assert throughput(1.0) == float("inf")


def test_what_is_not_there_is_left_out_and_named(replays: Path) -> None:
    shape = read_shape(replays, "sizes_ignored", FIG_15)
    assert list(shape.found) == [1000, 10_000]
    assert list(shape.found[10_000]) == ["flexcache", "afterimage", "infinite"]
    assert shape.left_out == ("`nirvana` at 10,000 states", "100,000 states")
    budgets = [budget for budget, name, _ in shape.rows() if name == "infinite"]
    assert budgets == ["unlimited"]
    nothing = read_shape(replays, "nowhere", FIG_15)
    assert (nothing.found, len(nothing.left_out)) == ({}, len(BUDGETS))


def test_tables_and_pictures_take_their_places(replays: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--replays", str(replays)])
    page = (replays / "README.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("-->\nafter\n")
    text = (replays / "baselines" / "README.md").read_text() + page
    assert "stale" not in text
    assert "| **NIRVANA** | 1,500,000 states | 88.0 / – | – | – | – | 8.0 / 4.0 | 21.0 % | 11.9 |" in text
    assert "| `flexcache` | 1,000 states | 50.0 / 3.0 | 20.0 / 0.0 | 20.0 / 0.0 | 20.0 / 0.0 | 20.0 / 10.0 |" in text
    assert "| **MoDM** | – | – | 92.8 % |" in text
    assert "| cache-all (surrogate) | 30.0 % (11.7) | – | – |" in text
    assert "Not replayed, and left out: 10,000 entries, 100,000 entries." in text
    assert "| `infinite` | unlimited | 98.6 % | 1.5 | 75.0 % |" in text
    assert "| 1 GB | 0.1 % | 38 / 10 | 68 / 15 | 54 / 13 | 86 / 18 | FIFO < LCBFU < LRU < LRBU |" in text
    assert "| as its own paper says | 1,000 states | 12.5 % | 50.0 / 13.0 |" in text
    assert "| `nirvana` | 10,000 states | 0 %, 1.00 | 0 %, 1.00 | 0 %, 1.00 | 60 %, 1.25 | 50 % | 0.87 | 1.15 |" in text
    assert text.count("| `nirvana-infinite` | unlimited |") == 1
    assert text.count("| **NIRVANA**") == capsys.readouterr().out.count("| **NIRVANA**") == 2
    assert {path.name for path in (replays / "paper_shapes").iterdir()} == PICTURES
    assert placed(text, bench.blocks_of(PAPER, *bench.read_all(replays)), bench.COMMAND) == text


def test_a_page_without_a_place_is_left_as_it_is(replays: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (replays / "README.md").write_text("nothing\n")
    with pytest.raises(SystemExit):
        bench.main(["--replays", str(replays)])
    assert "has a place for modm_fig_9" in capsys.readouterr().err
    assert (replays / "README.md").read_text() == "nothing\n"
    assert "stale" in (replays / "baselines" / "README.md").read_text()


def test_the_pages_are_of_the_summaries_and_show_every_picture() -> None:
    blocks = bench.blocks_of(PAPER, *bench.read_all(REPLAY))
    named = []
    for page in REPLAY.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        here = {name: blocks[name] for name in places(text, bench.COMMAND)}
        assert placed(text, here, bench.COMMAND) == text, "run python -m bench.replays.replay_shapes"
        shown = re.findall(r"\(([\w/.]+\.png)\)", text)
        assert {f"{name}.png" for name in here} <= {Path(one).name for one in shown}
        named += list(here)
    assert sorted(named) == sorted(blocks)
    assert {path.name for path in (REPLAY / "paper_shapes").glob("*.png")} == PICTURES
