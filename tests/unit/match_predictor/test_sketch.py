import numpy as np
import numpy.typing as npt
import pytest

from services.match_predictor.sketch import SMALL, Graph, Rows, Sketch
from shared.domain.types import Vector

DIM = 64


def vectors(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def named(rows: npt.NDArray[np.float32], start: int = 0) -> dict[str, Vector]:
    return {f"e{start + i}": row for i, row in enumerate(rows)}


def near(row: Vector, cosine: float) -> Vector:
    """A unit vector with exactly this cosine to `row`."""
    other = np.roll(row, 1)
    other = other - (other @ row) * row
    made = cosine * row + (1 - cosine**2) ** 0.5 * other / np.linalg.norm(other)
    return made.astype(np.float32)


@pytest.mark.parametrize("count", [20, SMALL + 200])
def test_hit_above_the_threshold_and_miss_below(count: int) -> None:
    rows = vectors(count)
    sketch = Sketch(lambda: 0.9, margin=0.01)
    sketch.update(named(rows), ())
    assert len(sketch) == count
    for row in rows[:20]:
        assert sketch.predict(near(row, 0.95))[0]
        hit, score = sketch.predict(near(row, 0.8))
        assert not hit
        assert score == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("count", [20, SMALL + 200])
def test_what_left_is_no_longer_near(count: int) -> None:
    rows = vectors(count)
    sketch = Sketch(lambda: 0.9, margin=0.0)
    sketch.update(named(rows), ())
    sketch.update({}, ["e3", "e4", "unknown"])
    assert not sketch.predict(rows[3])[0]
    assert sketch.predict(rows[5])[0]
    assert sketch.predict(rows[-1])[0]
    sketch.update({"e3": rows[3]}, ())
    assert sketch.predict(rows[3])[0]


def test_adding_twice_is_fine() -> None:
    rows = vectors(SMALL + 50)
    sketch = Sketch(lambda: 0.9, margin=0.0)
    sketch.update(named(rows), ())
    sketch.update(named(rows[:10]), ())
    assert len(sketch) == SMALL + 50


def test_an_empty_sketch_expects_nothing() -> None:
    sketch = Sketch(lambda: 0.0, margin=0.0)
    assert sketch.predict(vectors(1)[0]) == (False, -1.0)
    sketch.update({"a": vectors(1)[0]}, ())
    sketch.update({}, ["a"])
    assert sketch.predict(vectors(1)[0]) == (False, -1.0)


def test_the_threshold_follows_the_table() -> None:
    row, threshold = vectors(1)[0], [0.9]
    sketch = Sketch(lambda: threshold[0], margin=0.0)
    sketch.update({"a": row}, ())
    assert not sketch.predict(near(row, 0.8))[0]
    threshold[0] = 0.7
    assert sketch.predict(near(row, 0.8))[0]


def test_rows_and_graph_agree() -> None:
    rows, graph, exact = vectors(400), Graph(DIM), Rows(DIM)
    for name, row in named(rows).items():
        graph.add(name, row)
        exact.add(name, row)
    queries = [near(row, 0.85) for row in rows[:50]]
    differences = [abs(graph.nearest(query) - exact.nearest(query)) for query in queries]
    assert max(differences) < 0.02
