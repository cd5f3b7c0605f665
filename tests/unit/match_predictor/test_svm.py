import numpy as np
import pytest

from services.match_predictor.svm import OUTERMOST, OneClassSvm, _fitted
from shared.domain.types import Vector


def cluster(count: int, seed: int = 0) -> dict[str, Vector]:
    rng = np.random.default_rng(seed)
    rows = np.array([1.0] + [0.0] * 15) + 0.1 * rng.standard_normal((count, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {f"{seed}-{i}": row.astype(np.float32) for i, row in enumerate(rows)}


def test_inside_and_outside() -> None:
    svm = OneClassSvm()
    svm.update(cluster(300), ())
    fit = svm.refit()
    assert fit is not None
    fit()
    inside = [svm.predict(row)[0] for row in cluster(50, seed=1).values()]
    assert np.mean(inside) > 0.9
    away = np.array([-1.0] + [0.0] * 15, dtype=np.float32)
    assert not svm.predict(away)[0]


def test_the_score_is_scikit_learns_own_decision_function() -> None:
    from sklearn.linear_model import SGDOneClassSVM

    rows = cluster(200)
    svm = OneClassSvm()
    svm.update(rows, ())
    fit = svm.refit()
    assert fit is not None
    fit()
    theirs = SGDOneClassSVM(nu=0.001, tol=None, max_iter=2500, random_state=0).fit(np.stack(list(rows.values())))
    query = next(iter(cluster(1, seed=2).values()))
    assert svm.predict(query)[1] == pytest.approx(float(theirs.decision_function(query[None])[0]), abs=1e-5)


def test_retrained_only_when_more_than_five_percent_changed() -> None:
    svm = OneClassSvm()
    rows = cluster(100)
    svm.update(rows, ())
    first = svm.refit()
    assert first is not None
    first()
    svm.update(cluster(5, seed=3), ())
    assert svm.refit() is None  # 5 of 105
    svm.update({}, [next(iter(rows))])
    assert svm.refit() is not None  # 6 of 104
    assert svm.refit() is None


def test_before_the_first_fit_every_lookup_is_worth_it_and_without_entries_none() -> None:
    svm = OneClassSvm()
    query = next(iter(cluster(1).values()))
    assert svm.predict(query)[0] is False
    assert svm.refit() is None
    svm.update(cluster(3), ())
    assert svm.predict(query)[0] is True


def fitted(svm: OneClassSvm) -> OneClassSvm:
    fit = svm.refit()
    assert fit is not None
    fit()
    return svm


def test_a_later_fit_goes_on_and_decides_as_one_from_nothing() -> None:
    rows = cluster(600)
    names = list(rows)
    going_on = OneClassSvm()
    going_on.update({name: rows[name] for name in names[:300]}, ())
    fitted(going_on)
    for first in range(0, 300, 30):  # a tenth leaves for another at a time
        going_on.update({name: rows[name] for name in names[300 + first : 330 + first]}, names[first : first + 30])
        fitted(going_on)
    anew = OneClassSvm()
    anew.update({name: rows[name] for name in names[300:]}, ())
    fitted(anew)
    rng = np.random.default_rng(5)
    queries = [row for spread in (0.1, 0.3, 0.6) for row in near(rng, 200, spread)]
    both = [(going_on.predict(query)[0], anew.predict(query)[0]) for query in queries]
    assert np.mean([one == other for one, other in both]) > 0.95
    assert 0.2 < np.mean([one for one, _ in both]) < 0.95


def test_weights_of_a_cache_that_is_gone_are_not_gone_on_from() -> None:
    rows, away = cluster(100), {f"away-{name}": -row for name, row in cluster(100).items()}
    svm = OneClassSvm()
    svm.update(rows, ())
    fitted(svm)
    svm.update(away, list(rows))
    fitted(svm)
    assert np.mean([svm.predict(row)[0] for row in away.values()]) > 0.9
    assert not any(svm.predict(row)[0] for row in rows.values())


@pytest.mark.parametrize("others", ["alike", "elsewhere", "opposite"])
def test_a_later_fit_decides_as_if_no_entry_had_been_left_out(others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the entries leaves for others of the same kind, or half of them for such as were all outside."""
    rng = np.random.default_rng(5)
    rows = np.stack(list(cluster(600).values()))
    come = {
        "alike": np.stack(near(rng, 30, 0.1)),
        "elsewhere": np.stack(near(rng, 300, 0.1))[:, ::-1],
        "opposite": -rows[:300],
    }[others]
    queries = [row for spread in (0.1, 0.3, 0.6, 1.5) for row in near(rng, 200, spread)]
    verdicts = []
    for share in (OUTERMOST, 1.0):
        monkeypatch.setattr("services.match_predictor.svm.OUTERMOST", share)
        svm = OneClassSvm()
        svm.update({f"{i}": row for i, row in enumerate(rows)}, ())
        fitted(svm)
        svm.update({f"came-{i}": row for i, row in enumerate(come)}, [f"{i}" for i in range(len(come))])
        fitted(svm)
        verdicts.append([svm.predict(query)[0] for query in queries])
    assert np.mean([one == other for one, other in zip(*verdicts, strict=True)]) > 0.97
    assert 0.1 < np.mean(verdicts) < 1


def test_until_a_later_fit_ends_the_weights_of_before_decide() -> None:
    """Serving fits in a thread: scikit-learn writes to the weights that it is given to go on from."""
    rows = np.stack(list(cluster(200).values()))
    before = _fitted(rows, None, 0)
    weights = before[0].copy()
    after, _ = _fitted(rows[100:], before, 1)
    assert not np.array_equal(after.ravel(), weights.ravel())
    assert np.array_equal(before[0], weights)


def near(rng: np.random.Generator, count: int, spread: float) -> list[Vector]:
    rows = np.array([1.0] + [0.0] * 15) + spread * rng.standard_normal((count, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return list(rows.astype(np.float32))
