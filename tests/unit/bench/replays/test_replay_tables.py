"""The tables of the pages in bench/replay/ are those of the summaries beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.measuring.marks import places
from bench.replays.replay_days import REPLAY, STUDIES, keep
from bench.replays.replay_tables import COMMAND, KINDS, PAGES, written
from services.replay.results.compare import DECISIONS

USERS = np.repeat(np.arange(20), 5)
STARTS = {"flexcache": np.tile([0, 0, 10, 10, 20], 20), "afterimage": np.tile([0, 10, 10, 20, 20], 20)}


def place(name: str) -> str:
    return f"<!-- {name}: written by {COMMAND} -->\nof old\n<!-- end of {name} -->\n"


def figures(starts: np.ndarray) -> dict[str, object]:
    saved = float(starts.mean() / 50)
    return {
        "surrogate": False, "bounded": True, "steps_saved": saved, "steps_saved_95": [saved, saved],
        "hit_rate": float((starts > 0).mean()), "parts": [saved, saved], "decisions_per_processor_s": 12_345.6,
        "fairness": {"jain": 1.0, "without_any": 0.0},
    }  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder as `afterimage replay` leaves it, in which ours saves six steps a request more."""
    folder = tmp_path / "made"
    folder.mkdir()
    latents = {"reuses": "latent", "unlimited": False}
    summary = {
        "trace": {"digest": "0", "requests": 100, "warmup": 0},
        "settings": {"steps": 50, "policies": dict.fromkeys(STARTS, latents)},
        "budgets": [
            {
                "states": 1000,
                "of": "states",
                "bound": {"steps_saved": 0.5, "infinite": 0.6},
                "policies": {name: figures(starts) for name, starts in STARTS.items()},
            }
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    arrays: dict[str, Any] = {"users": USERS, **{f"1000/{name}": starts for name, starts in STARTS.items()}}
    np.savez(folder / DECISIONS, **arrays)
    return folder


def test_tables_say_what_was_replayed(made: Path, tmp_path: Path) -> None:
    keep("days", list(STARTS), made, tmp_path / "kept")
    text = "".join(map(place, ("steps_days", "ahead_days", "tenths_days", "speed_days")))
    said = written(text, tmp_path / "kept")
    assert "of old" not in said
    assert "| `afterimage` | 24.00 % (24.0–24.0; 80 %; 48 %) |" in said
    assert "| offline bound | 50.00 % |" in said
    assert "| `afterimage` beside `flexcache`* | 1.500×, +8.00 (+8.00 to +8.00) |" in said
    assert "| `flexcache` | 16.0 | 16.0 |" in said
    assert "| `afterimage` | 12,346 |" in said
    assert written(said, tmp_path / "kept") == said


def test_a_saving_is_split_by_relation_and_compared_with_and_without_rerolls(tmp_path: Path) -> None:
    def one(reroll: float, edit: float) -> dict[str, object]:
        kinds = {"reroll": reroll, "edit": edit, "topic": 0.03, "other": 0.01}
        saved = {"steps_saved": sum(kinds.values()), "steps_saved_without_rerolls": edit + 0.04}
        return {**saved, "by_relation": {kind: {"steps_saved": share} for kind, share in kinds.items()}}

    budget = {"states": 1000, "of": "states", "policies": {"lrbu-hits": one(0.08, 0.04), "infinite": one(0.12, 0.08)}}
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "summary.json").write_text(json.dumps({"budgets": [budget]}))
    said = written(place("relations_days"), tmp_path)
    kinds = "50.0 % | 25.0 % | 18.8 % | 6.2 %"
    assert f"| `lrbu-hits` | 16.00 % | 66.7 % | 1.00× | {kinds} | 8.00 % | 66.7 % | 1.00× |" in said
    assert "| `infinite` | 24.00 % | 100.0 % | 1.50× |" in said


def test_text_around_a_table_stays(tmp_path: Path) -> None:
    assert written("no table <!-- here -->\n", tmp_path) == "no table <!-- here -->\n"


def test_an_unknown_table_is_an_error(made: Path, tmp_path: Path) -> None:
    keep("days", list(STARTS), made, tmp_path)
    with pytest.raises(KeyError, match="prices"):
        written(place("prices_days"), tmp_path)


def test_every_kind_of_table_has_a_place_and_none_has_two() -> None:
    named = [name for page in PAGES for name in places(page.read_text(encoding="utf-8"), COMMAND)]
    assert len(named) == len(set(named)) >= 20
    assert {name.partition("_")[0] for name in named} == set(KINDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPLAY).as_posix())
def test_a_page_is_of_its_summaries(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text) == text, "run python -m bench.replays.replay_tables"


def test_every_study_has_a_page_and_the_summary_page_links_every_page() -> None:
    summary = (REPLAY / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w/]+\.md)\)", summary))
    assert linked == {page.relative_to(REPLAY).as_posix() for page in PAGES} - {"README.md"}
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in STUDIES if f"_{name}: written by" not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPLAY).as_posix())
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in linked if not (page.parent / link).exists()] == []
