"""Savings by relation: who asked for the state that a request started from, and with which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.replay.results.figures import Run, figures
from services.replay.results.plots import plots
from services.replay.results.relations import by_relation, without_rerolls
from services.replay.simulated.decisions import nothing_decided
from tests.unit.replay.house import trace_of

PROMPTS = ["a red fox", "a red fox", "A red fox!", "a red fox in snow", "one blue boat", "a red fox", "a green cat"]
USERS = [0, 1, 0, 0, 0, 1, 2]


def test_each_start_has_the_relation_of_its_users_and_words() -> None:
    trace = trace_of(PROMPTS, USERS)
    made = replace(
        nothing_decided(7),
        start_step=np.array([0, 5, 10, 15, 20, 25, 0], np.int16),
        source=np.array([-1, 0, 0, 2, 3, 1, -1], np.int32),
    )
    found = by_relation(made, trace, 1, 50)
    assert {kind: round(one["steps_saved"] * 300) for kind, one in found.items()} == {
        "reroll": 10 + 25, "edit": 15, "topic": 20, "other": 5,
    }  # fmt: skip
    assert {kind: round(one["hits"] * 6) for kind, one in found.items()} == {
        "reroll": 2, "edit": 1, "topic": 1, "other": 1,
    }  # fmt: skip
    assert without_rerolls(found) == pytest.approx(40 / 300)
    summary = figures(Run("p", "", False, False, 1, made, 1.0, 1.0), trace, 1, 50)
    assert summary["by_relation"] == found
    assert sum(one["steps_saved"] for one in found.values()) == pytest.approx(summary["steps_saved"])
    assert summary["steps_saved_without_rerolls"] == without_rerolls(found)


def test_the_saving_of_each_relation_is_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = replace(nothing_decided(7), start_step=np.full(7, 5, np.int16), source=np.zeros(7, np.int32))
    one = figures(Run("p", "", False, False, 1, made, 1.0, 1.0), trace_of(PROMPTS, USERS), 1, 50)
    budget = {"states": 20, "of": "states", "bound": None, "policies": {"lru": one}}
    assert tmp_path / "relations_20.png" in plots(tmp_path, {"budgets": [budget]})
    del one["by_relation"]  # as in summaries that were recorded before
    assert tmp_path / "relations_20.png" not in plots(tmp_path, {"budgets": [budget]})
