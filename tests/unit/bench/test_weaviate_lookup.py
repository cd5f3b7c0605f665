"""The lookup benchmark's data, its truth, and one small run of it on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench import weaviate_lookup as bench
from tests.contracts.servers import url_of


def test_the_data_are_unit_rows_in_clusters_and_queries_lie_near_them() -> None:
    rows = bench.clustered(500, 64, 20, seed=1)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    cosines = rows @ rows.T
    assert np.median(np.sort(cosines, axis=1)[:, -3]) > 0.6  # another of its cluster
    queries = bench.like(rows, 100, seed=2)
    assert np.median((queries @ rows.T).max(axis=1)) > 0.85


def test_the_truth_is_the_nearest_of_those_that_are_allowed() -> None:
    rows = bench.clustered(300, 16, 10, seed=3)
    queries = bench.like(rows, 40, seed=4)
    allowed = np.arange(300) % 3 == 0
    expected = [max(range(0, 300, 3), key=lambda n: float(rows[n].astype(float) @ query)) for query in queries]
    assert bench.nearest(rows, queries, allowed).tolist() == expected


def test_a_small_run(tmp_path: Path) -> None:
    url_of("weaviate")  # skips where there is none
    bench.main(["--count", "300", "--queries", "20", "--dim", "16", "--clusters", "20", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "weaviate_lookup.json").read_text())["figures"]
    assert found["entries"] == 300
    assert (found["check_added"], found["repair_added"]) == (0, 300)
    assert [one["recall_at_1"] for one in found["searches"].values()] == [1.0, 1.0]
    assert found["largest_cosine_error"] < 1e-6
