import pytest

from services.retriever.selection import (
    Ladder,
    Weighed,
    allowed_step,
    best,
    largest_present,
    lowest,
    shifted,
    should_widen_search,
    trim_candidates,
    weigh,
)
from shared.models.k_table import FIG_10, KTable, Level


@pytest.mark.parametrize(
    ("similarity", "k"),
    [(0.2, 0), (0.65, 0), (0.651, 5), (0.75, 5), (0.76, 10), (0.86, 15), (0.9, 15), (0.91, 20), (0.95, 20), (1.0, 25)],
)
def test_fig_10_to_the_letter(similarity: float, k: int) -> None:
    assert allowed_step(FIG_10, similarity, 50) == k


@pytest.mark.parametrize(("steps", "wished"), [(50, 25), (100, 50), (30, 15), (25, 12), (8, 4), (3, 1), (1, 0)])
def test_k_is_scaled_to_the_request_and_rounds_down(steps: int, wished: int) -> None:
    assert allowed_step(FIG_10, 0.99, steps) == wished


def test_an_empty_table_allows_nothing() -> None:
    assert allowed_step(KTable(()), 1.0, 50) == 0


def test_a_floor_stands_whatever_the_levels_and_the_knob_say() -> None:
    table = KTable((Level(5, -0.4), Level(10, 0.6)))
    assert [allowed_step(table, one, 50, floor=0.4) for one in (0.107, 0.4, 0.41, 0.61)] == [0, 0, 5, 10]
    assert allowed_step(table, 0.107, 50) == 5
    assert [allowed_step(table, 0.39, 50, savings, floor=0.4) for savings in (0.0, 0.5, 1.0)] == [0, 0, 0]
    assert lowest(table, 0.5, 0.4) == 0.4
    assert lowest(FIG_10, 0.5, 0.4) == pytest.approx(0.65)
    assert KTable(()).lowest_similarity > 1


def test_the_knob_scales_the_distance_to_identity() -> None:
    assert shifted(0.9, 0.5) == pytest.approx(0.9)
    assert shifted(0.9, 1.0) == pytest.approx(0.8)
    assert shifted(0.9, 0.0) == pytest.approx(0.95)
    ks = [allowed_step(FIG_10, 0.9, 50, savings=s / 10) for s in range(11)]
    assert ks == sorted(ks)
    assert ks[0] < ks[5] < ks[10]


def test_a_hole_falls_to_the_largest_k_below() -> None:
    assert largest_present([5, 10, 20], 15) == 10
    assert largest_present([5, 10, 20], 20) == 20
    assert largest_present([20, 25], 15) == 0
    assert largest_present([0], 15) == 0  # a state with no step of this schedule is no state


def test_levels_need_not_be_sorted() -> None:
    assert allowed_step(KTable((Level(20, 0.9), Level(5, 0.5))), 0.95, 50) == 20


def weighed(*entries: tuple[float, list[int]]) -> list[Weighed]:
    ladder = Ladder(FIG_10, 50)
    return [weigh(ladder, f"e{place}", similarity, steps) for place, (similarity, steps) in enumerate(entries)]


def test_holes_in_all_of_the_nearest_send_a_lookup_further() -> None:
    assert should_widen_search(weighed((0.92, [25]), (0.91, [25])), asked=2)
    assert should_widen_search(weighed((0.92, [5]), (0.86, [20])), asked=2)  # the last allows 15, 5 is there
    assert not should_widen_search(weighed((0.92, [15]), (0.86, [20])), asked=2)  # the next could not start later
    assert not should_widen_search(weighed((0.92, [25]), (0.6, [5])), asked=2)  # nor anything at all
    assert not should_widen_search(weighed((0.92, [25])), asked=2)  # there is no next
    assert not should_widen_search([], asked=1)


def test_what_was_looked_at_further_away_is_forgotten_unless_it_was_chosen() -> None:
    all_of_them = weighed((0.92, [25]), (0.91, [25]), (0.89, [20]), (0.88, [15]))
    chosen = best(all_of_them)
    assert chosen is all_of_them[3]
    assert trim_candidates(all_of_them, 2, chosen) == [*all_of_them[:2], chosen]
    assert trim_candidates(all_of_them, 4, chosen) == all_of_them
    assert trim_candidates(all_of_them, 2, None) == all_of_them[:2]
