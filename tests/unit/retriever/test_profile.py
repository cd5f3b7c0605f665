import math
import random
from statistics import NormalDist

import pytest

from services.retriever.profile import (
    ProfileRow,
    build_table,
    by_kind,
    mean_lower_bound,
    measure,
    share_lower_bound,
    threshold,
)
from services.retriever.selection import wished_step
from shared.models.k_table import table_from_json, table_to_json


def rows(k: int, falls_at: float, seed: int = 0, count: int = 800, **more: object) -> list[ProfileRow]:
    """Quality 1 above `falls_at`, .5 below, with noise."""
    rng = random.Random(seed + k)
    made = []
    for _ in range(count):
        similarity = rng.random()
        ratio = (1.0 if similarity > falls_at else 0.5) + rng.gauss(0, 0.05)
        made.append(ProfileRow(k, similarity, ratio, **more))  # type: ignore[arg-type]
    return made


def test_the_threshold_is_where_quality_falls() -> None:
    table = build_table([*rows(5, 0.5), *rows(10, 0.7), *rows(15, 0.9)], alpha=0.9)
    assert [level.k for level in table.levels] == [5, 10, 15]
    for level, falls_at in zip(table.levels, (0.5, 0.7, 0.9), strict=True):
        assert falls_at - 0.01 <= level.min_similarity <= falls_at + 0.06  # never much below, at most one band above
    assert sum(cell.count for cell in table.cells) == 2400


def test_thresholds_are_monotone_even_where_the_measurement_is_not() -> None:
    table = build_table([*rows(5, 0.8), *rows(10, 0.3)], alpha=0.9)
    low, high = (level.min_similarity for level in table.levels)
    assert low == high > 0.75


def test_a_k_that_is_never_safe_is_left_out_and_so_is_every_k_above_it() -> None:
    table = build_table([*rows(5, 0.5), *rows(10, 2.0), *rows(15, 0.5)], alpha=0.9)
    assert [level.k for level in table.levels] == [5]
    assert {cell.k for cell in table.cells} == {5, 10, 15}  # what was measured stays readable
    assert wished_step(table, 0.99, 50) == 5


def test_one_bad_band_above_good_ones_is_not_averaged_away() -> None:
    made = [*rows(5, 0.0, count=400), *(ProfileRow(5, 0.7 + i / 10_000, 0.2) for i in range(200))]
    (level,) = build_table(made, alpha=0.9).levels
    assert level.min_similarity > 0.7


def test_a_lost_attribute_makes_a_k_unsafe_however_good_the_clip_score() -> None:
    good = [ProfileRow(5, 0.5 + i / 1000, 1.0, kept=True, kept_from_noise=True) for i in range(200)]
    lost = [ProfileRow(5, 0.5 + i / 1000, 1.0, kept=i % 2 == 0, kept_from_noise=True) for i in range(200)]
    assert build_table(good, alpha=0.9).levels
    assert not build_table(lost, alpha=0.9).levels
    (cell,) = measure(lost, alpha=0.9, cell_rows=200)
    assert (cell.kept, cell.kept_from_noise, cell.judged) == (0.5, 1.0, 200)


def test_too_few_rows_prove_nothing() -> None:
    assert not build_table([ProfileRow(5, 0.9, 1.0), ProfileRow(5, 0.8, 1.0)], alpha=0.9).levels
    with pytest.raises(ValueError, match="at least one row"):
        build_table([], alpha=0.9)


def test_the_row_at_the_threshold_itself_passes() -> None:
    made = [ProfileRow(5, 0.8, 0.95 + i / 1000) for i in range(50)]
    table = build_table(made, alpha=0.9)
    assert wished_step(table, 0.8, 50) == 5
    assert wished_step(table, 0.799999, 50) == 0


def test_bounds() -> None:
    assert mean_lower_bound([1.0, 1.0]) == -math.inf
    assert mean_lower_bound([1.0] * 5) == 1.0
    # t(.95, 9) = 1.833, sample deviation of 0..9 is 3.02765
    assert mean_lower_bound([float(i) for i in range(10)]) == pytest.approx(4.5 - 1.833 * 3.02765 / 10**0.5, abs=5e-3)
    assert share_lower_bound(0, 0) == 0
    assert share_lower_bound(32, 32) == pytest.approx(32 / (32 + NormalDist().inv_cdf(0.95) ** 2))
    assert 0.8 < share_lower_bound(90, 100) < 0.9


def test_by_kind_counts_what_each_change_costs() -> None:
    made = [ProfileRow(5, 0.9, 1.0, kind="light"), ProfileRow(5, 0.9, 0.5, kind="object")] * 5
    cells = by_kind(made, alpha=0.9)
    assert cells[("light", 5)].mean_ratio == 1.0
    assert cells[("object", 5)].safe is False
    assert threshold([]) is None


def test_a_table_survives_json() -> None:
    table = build_table(rows(5, 0.5), alpha=0.95, model="large", weights_hash="w", encoder_hash="e")
    assert table_from_json(table_to_json(table)) == table
