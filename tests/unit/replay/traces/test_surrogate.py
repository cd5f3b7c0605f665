"""What stands for similarities to pictures: repeatable, on its curve, and never a start that the table forbids."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from services.replay.policy import read_policy
from services.replay.simulated.simulation import Replay
from services.replay.traces.surrogate import Curve, chance, cosines_of, picture_load, read_curve
from shared.models.k_table import MODM
from tests.unit.replay.house import PICTURE, load_of, policy, topics

CURVE = Curve((0.0, 0.5, 1.0), (0.0, 0.4, 1.0), (0.1, 0.1, 0.05))


def test_chance_is_normal_and_the_same_again() -> None:
    one = chance(np.int64(7), np.arange(20_000))
    assert np.array_equal(one, chance(np.full(20_000, 7), np.arange(20_000)))
    assert abs(one.mean()) < 0.03
    assert abs(one.std() - 1) < 0.03
    assert abs(np.corrcoef(one, chance(np.int64(8), np.arange(20_000)))[0, 1]) < 0.03


def test_cosines_follow_the_curve_between_its_ends() -> None:
    others = np.arange(20_000)
    for similarity, share in ((0.0, 0.0), (0.25, 0.2), (1.0, 1.0)):
        made = cosines_of(CURVE, (0.1, 0.3), np.int64(3), others, np.full(len(others), similarity))
        assert abs(made.mean() - (0.1 + 0.2 * share)) < 0.002


def test_lists_are_in_order_of_the_surrogate_and_above_its_threshold() -> None:
    load = load_of(*topics(200))
    pictures = picture_load(CURVE, (0.1, 0.3), load.text_of, load.neighbours)
    near = pictures.neighbours
    listed = near.indices >= 0
    assert 0 < listed.sum() < (load.neighbours.indices >= 0).sum()
    assert (near.similarities[listed] > MODM.lowest_similarity).all()
    assert (np.diff(near.similarities, axis=1) <= 0).all()
    assert (near.indices < np.arange(200)[:, None]).all()
    # by hand: the same pair, asked for alone
    request = int(np.flatnonzero(listed[:, 0])[0])
    other = int(near.indices[request, 0])
    place = load.neighbours.indices[request].tolist().index(other)
    text = float(load.neighbours.similarities[request, place])
    ((found, cosine),) = pictures.best(request, [(other, text)])
    assert found == other
    assert np.isclose(cosine, near.similarities[request, 0])


def test_modm_starts_from_pictures_of_a_sliding_window() -> None:
    load = load_of(*topics(300))
    large, whole = (Replay(load, read_policy(name), 40 * PICTURE).run() for name in ("modm-cache-large", "modm"))
    for made in (large, whole):
        starts = made.start_step[made.source >= 0]
        assert set(starts.tolist()) <= {level.k for level in MODM.levels}
        assert made.bytes.max() <= 40 * PICTURE
        assert (made.similarity[made.source >= 0] > MODM.lowest_similarity).all()
    assert (large.start_step[large.source[large.source >= 0]] == 0).all()  # of misses alone
    hits = np.flatnonzero(whole.source >= 0)
    assert (hits - whole.source[hits]).max() <= 40  # forty of them, in order


def test_raised_thresholds_allow_less() -> None:
    load = load_of(*topics(300))
    usual, higher = (Replay(load, read_policy(name), 40 * PICTURE).run() for name in ("modm", "modm-raised"))
    assert (higher.similarity[higher.source >= 0] > MODM.lowest_similarity + 0.01).all()
    assert 0 < (higher.source >= 0).sum() < (usual.source >= 0).sum()
    assert higher.start_step.sum() < usual.start_step.sum()
    with pytest.raises(ValidationError, match="raised_by: "):
        policy(raised_by=0.01)


def test_the_curve_that_ships_was_checked() -> None:
    curve, measured = read_curve()
    assert list(curve.similarity) == sorted(curve.similarity)
    assert curve.share[-1] == 1
    assert len(curve.similarity) == len(curve.share) == len(curve.spread)
    assert measured["check"]["within_one_level"] > 0.5
    assert measured["weights_hash"]
