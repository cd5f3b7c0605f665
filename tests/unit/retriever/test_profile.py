import json
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest

from services.retriever.profile import (
    ProfileRow,
    build_table,
    by_kind,
    measure,
    rows_that_prove,
    threshold,
)
from services.retriever.selection import allowed_step
from shared.models.confidence import ratio_bounds, share_bounds
from shared.models.k_table import KTable, table_from_json, table_to_json
from shared.models.quality import Measures


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
    assert allowed_step(table, 0.99, 50) == 5


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
    with pytest.raises(ValueError, match="rows must hold"):
        build_table([], alpha=0.9)


def test_the_row_at_the_threshold_itself_passes() -> None:
    made = [ProfileRow(5, 0.8, 0.95 + i / 1000) for i in range(50)]
    table = build_table(made, alpha=0.9)
    assert allowed_step(table, 0.8, 50) == 5
    assert allowed_step(table, 0.799999, 50) == 5  # as an index may compute it
    assert allowed_step(table, 0.7998, 50) == 0


def test_similarities_that_rounding_alone_parts_share_a_band() -> None:
    made = [ProfileRow(5, 1.0 - i * 1e-7, 0.95 + i / 1000, kept=i < 45, kept_from_noise=True) for i in range(50)]
    (band,) = measure(made, alpha=0.9)
    assert band.count == 50


def test_the_floor_is_just_below_the_least_similar_related_pair() -> None:
    related = [ProfileRow(5, 0.5 + i / 100, 0.3, 0.3, kind="object") for i in range(40)]
    unrelated = [ProfileRow(5, 0.1, 0.3, 0.3, kind="unrelated") for _ in range(40)]
    table = build_table([*related, *unrelated], alpha=0.9)
    assert table.floor is not None
    assert table.levels[0].min_similarity < 0.1  # an unrelated start keeps the quality, too
    assert allowed_step(table, 0.5, 50, floor=table.floor) == 5
    assert allowed_step(table, 0.4999, 50, floor=table.floor) == 0
    assert build_table(unrelated, alpha=0.9).floor is None


def judged(count: int, *, lost: float = 0.0, wrong_from_noise: float = 0.0, seed: int = 0) -> list[ProfileRow]:
    """Rows of K = 5 over every similarity: that share of pictures wrong from noise, and lost of what noise kept."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        noise = rng.random() >= wrong_from_noise
        kept = rng.random() >= (lost if noise else wrong_from_noise)  # what noise got wrong may come out from K
        made.append(ProfileRow(5, 1 - i / count, 0.3, 0.3, kept=kept, kept_from_noise=noise))
    return made


@pytest.mark.parametrize("alpha", [0.9, 0.95])
def test_a_model_that_loses_nothing_has_a_table(alpha: float) -> None:
    (level,) = build_table(judged(240), alpha=alpha).levels
    assert level.min_similarity < 0.01  # every band is safe
    enough = rows_that_prove(alpha)
    assert build_table(judged(int(enough)), alpha=alpha).levels
    assert not build_table(judged(int(enough) - 1), alpha=alpha).levels  # so few prove no such share


def test_noise_that_is_as_wrong_as_the_state_does_not_count_against_it() -> None:
    fair = build_table(judged(600, lost=0.04, wrong_from_noise=0.1), alpha=0.9)
    (level,) = fair.levels
    assert level.min_similarity < 0.2
    # a third of what noise keeps is lost: never safe, whatever the noise itself gets wrong
    assert not build_table(judged(600, lost=0.33, wrong_from_noise=0.1), alpha=0.9).levels


def test_a_band_of_paraphrases_with_two_judged_rows_waits_for_more() -> None:
    paraphrases = [ProfileRow(5, 0.98 + i / 10_000, 0.3, 0.3) for i in range(38)]
    changed = [ProfileRow(5, 0.97 - i / 1000, 0.3, 0.3, kept=True, kept_from_noise=True) for i in range(100)]
    two = [ProfileRow(5, 0.975, 0.3, 0.3, kept=True, kept_from_noise=True)] * 2
    (level,) = build_table([*paraphrases, *two, *changed], alpha=0.95).levels
    assert level.min_similarity < 0.872  # the last row
    # at the other end of the scale they join the band above them
    rest = [ProfileRow(5, 0.5, 0.3, 0.3)] * 20 + [ProfileRow(5, 0.45, 0.3, 0.3, kept=True, kept_from_noise=True)] * 2
    (level,) = build_table([*changed, *rest], alpha=0.95).levels
    assert level.min_similarity < 0.46


def test_rows_that_prove_a_loss_are_not_pooled_with_better_ones() -> None:
    bad = [ProfileRow(5, 0.99, 0.3, 0.3, kept=i % 2 == 0, kept_from_noise=True) for i in range(40)]
    table = build_table([*bad, *judged(600)], alpha=0.9)
    assert table.levels == ()
    assert any(cell.safe for cell in table.cells)


def test_bounds_of_a_ratio_of_pairs() -> None:
    assert ratio_bounds([1.0, 1.0], [1.0, 1.0]) == (-math.inf, math.inf)
    assert ratio_bounds([0.3, 0.2, 0.4], [0.3, 0.2, 0.4]) == pytest.approx((1.0, 1.0))
    # against a constant reference it is Student's interval: t(.95, 9) = 1.833, sample deviation of 0..9 is 3.02765
    half = 1.833 * 3.02765 / 10**0.5
    bounds = ratio_bounds([float(i) for i in range(10)], [1.0] * 10)
    assert bounds == pytest.approx((4.5 - half, 4.5 + half), abs=5e-3)
    # one tiny denominator: the mean of ratios would say 3.0
    values, references = [*[0.27] * 9, 0.021], [*[0.3] * 9, 0.001]
    low, high = ratio_bounds(values, references)
    assert 0.88 < low < fmean(values) / fmean(references) < high < 0.95
    assert ratio_bounds([0.1, 0.2, 0.3], [0.0, 0.0, 0.0])[0] == -math.inf


@pytest.mark.parametrize("alpha", [0.9, 0.95])
@pytest.mark.parametrize("n", [60, 100, 200, 300])
def test_a_band_that_only_just_keeps_too_little_rarely_passes(alpha: float, n: int) -> None:
    """Counted over the binomial: losses come with probability 1 − α, noise loses nothing."""
    passes = 0.0
    for lost in range(n + 1):
        if share_bounds([True] * (n - lost) + [False] * lost, [True] * n)[0] < alpha:
            break
        passes += math.comb(n, lost) * (1 - alpha) ** lost * alpha ** (n - lost)
    assert 0 < passes < 0.065


def test_by_kind_counts_what_each_change_costs() -> None:
    made = [ProfileRow(5, 0.9, 1.0, kind="light"), ProfileRow(5, 0.9, 0.5, kind="object")] * 5
    cells = by_kind(made, alpha=0.9)
    assert cells[("light", 5)].mean_ratio == 1.0
    assert cells[("object", 5)].safe is False
    assert threshold([]) is None


def test_a_table_survives_json() -> None:
    table = build_table(rows(5, 0.5), alpha=0.95, model="large", weights_hash="w", encoder_hash="e")
    assert table_from_json(table_to_json(table)) == table


def test_a_band_holds_the_four_measures_where_its_rows_have_them() -> None:
    def row(i: int) -> ProfileRow:
        measures = Measures(contrast=45.0, likeness=0.3 + i / 1000)
        return ProfileRow(5, 0.9 - i / 1000, 0.3, 0.3, measures=measures, measures_from_noise=Measures(contrast=50.0))

    (cell,) = measure([row(i) for i in range(30)], alpha=0.9, cell_rows=30)
    assert cell.quality is not None
    assert cell.quality.contrast is not None
    assert cell.quality.contrast.value == pytest.approx(0.9)
    assert cell.quality.contrast.bound == pytest.approx(0.9)
    assert cell.quality.fidelity is not None
    assert cell.quality.fidelity.value == pytest.approx(cell.mean_ratio)
    assert cell.quality.variety is None
    table = KTable((), cells=(cell, replace(cell, quality=None)))
    stored = json.loads(json.dumps(table_to_json(table)))
    assert table_from_json(stored) == table
    assert "quality" not in stored["cells"][1]  # a cell of an earlier version
    assert (
        build_table([row(i) for i in range(30)], alpha=0.9).levels
        == build_table([ProfileRow(5, 0.9 - i / 1000, 0.3, 0.3) for i in range(30)], alpha=0.9).levels
    )  # the measures change no level yet
