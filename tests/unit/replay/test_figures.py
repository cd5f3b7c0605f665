from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.replay.figures import predictor
from services.replay.simulation import Replay, nothing_decided
from tests.unit.replay.house import STATE, load_of, policy, topics


def test_precision_and_recall_are_shares_of_what_was_let_through_and_of_what_would_have_hit() -> None:
    made = replace(
        nothing_decided(7),
        predicted=np.array([True, True, True, True, False, True, False]),
        found=np.array([False, False, True, True, True, False, False]),
    )
    of = predictor(made, 2)  # the first two do not count
    assert of == {"let_through": 3, "would_hit": 3, "both": 2, "precision": 2 / 3, "recall": 2 / 3}
    nobody = replace(made, predicted=np.zeros(7, np.bool_), found=np.zeros(7, np.bool_))
    assert predictor(nobody, 0) == {"let_through": 0, "would_hit": 0, "both": 0, "precision": None, "recall": None}


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
