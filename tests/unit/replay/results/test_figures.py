from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.replay.results.figures import Run, auc, counted, figures, predictor, scaled_from
from services.replay.simulated.decisions import nothing_decided
from services.replay.simulated.simulation import Replay
from shared.domain.errors import InvalidRequestError
from shared.domain.plan_rules import scale_steps
from tests.unit.replay.house import STATE, load_of, policy, topics, trace_of


def test_precision_and_recall_are_shares_of_what_was_let_through_and_of_what_would_have_hit() -> None:
    made = replace(
        nothing_decided(7),
        predicted=np.array([True, True, True, True, False, True, False]),
        found=np.array([False, False, True, True, True, False, False]),
        score=np.array([9, 9, 0.5, 0.4, 0.1, 0.4, 0.2], np.float32),
    )
    of = predictor(made, 2)  # the first two do not count
    # of six pairs the one that would have hit has the higher score in three, and in one they are equal
    shares = {"precision": 2 / 3, "recall": 2 / 3, "auc": pytest.approx(3.5 / 6)}
    assert of == {"let_through": 3, "would_hit": 3, "both": 2, **shares}
    nobody = replace(made, predicted=np.zeros(7, np.bool_), found=np.zeros(7, np.bool_))
    counts = {"let_through": 0, "would_hit": 0, "both": 0}
    assert predictor(nobody, 0) == {**counts, "precision": None, "recall": None, "auc": None}


def test_the_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = np.random.default_rng(3)
    scores, positive = rng.integers(0, 9, 80).astype(np.float32), rng.random(80) < 0.3
    pairs = [(one > other) + (one == other) / 2 for one in scores[positive] for other in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(np.mean(pairs))
    assert (auc(scores, np.ones(80, np.bool_)), auc(scores, np.zeros(80, np.bool_))) == (None, None)


@pytest.mark.parametrize("warmup", [24, 30, -1])
def test_a_warmup_that_leaves_no_request_has_no_figures(warmup: int) -> None:
    trace = trace_of(["a"] * 24, [0] * 24)
    with pytest.raises(InvalidRequestError, match=r"warmup.*below the 24 requests"):
        figures(Run("p", "", False, False, 1, nothing_decided(24), 1.0, 1.0), trace, warmup, 50)
    assert counted(23, trace) == 1


def test_what_a_lookup_would_have_found_is_known_also_of_those_not_let_through() -> None:
    load = load_of(*topics(400, spread=0.5))
    made = Replay(load, policy(predictor="svm"), 60 * STATE).run()
    assert (made.found & ~made.predicted).any()
    assert not made.start_step[~made.predicted].any()
    assert (made.start_step[made.predicted] > 0).tolist() == made.found[made.predicted].tolist()
    of = predictor(made, 40)
    hits = int((made.start_step[40:] > 0).sum())
    assert of["both"] == hits
    assert of["precision"] == pytest.approx(hits / made.predicted[40:].sum())
    assert of["recall"] == pytest.approx(hits / made.found[40:].sum())


def test_steps_saved_are_those_skipped_of_all_that_were_asked_for() -> None:
    users = [0] * 12 + [1] * 12
    trace = replace(trace_of(["a"] * 24, users), steps=np.array([150, 10] * 12))
    made = replace(nothing_decided(24), start_step=np.array([75, 0] * 6 + [0, 5] * 6, np.int16))
    told = figures(Run("p", "", False, False, 1, made, 1.0, 1.0), trace, 0, 50)
    assert told["steps_saved"] == pytest.approx((6 * 75 + 6 * 5) / (12 * 160))
    assert told["hit_rate"] == 0.5
    assert told["k_histogram"] == {"0": 12, "25": 12}
    low, high = told["steps_saved_95"]  # of two users one has saved 75 of 160, the other 5
    assert (low, high) == pytest.approx((5 / 160, 75 / 160))
    assert told["fairness"]["saved"]["p5"] == pytest.approx(5 / 160 + 0.05 * 70 / 160)
    assert told["hit_parts"] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 1 / 3, *[1 / 2] * 6])
    assert sum(told["parts"]) / 10 == pytest.approx(told["steps_saved"], rel=0.2)


def test_a_start_counts_as_the_k_of_50_that_it_was_scaled_from() -> None:
    for asked in (20, 30, 40, 50, 70, 75, 120, 149, 150):
        ks = scale_steps((5, 10, 15, 20, 25), asked)
        assert scaled_from(np.array(ks), np.full(5, asked), 50) == [5, 10, 15, 20, 25]
