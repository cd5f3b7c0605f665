"""Of latents alone the cheapest is the one with the fewest steps left: a replay need not reckon what they cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.retriever.choice import choose
from services.retriever.cost import Pace, cost_of
from services.retriever.selection import Weighed, best
from services.retriever.starts import Option, Start
from shared.domain.types import Candidate

STEPS = 50
candidates = st.lists(st.tuples(st.sampled_from([0, 5, 10, 25]), st.sampled_from([0.7, 0.8, 0.9])), max_size=8)


def option(one: Weighed, pace: Pace, *, picture: bool, steps: int = STEPS) -> Option:
    kind = "image" if picture else "latent"
    candidate = Candidate(one.entry_id, kind, one.similarity, one.allowed_step, one.start_step)
    cost = cost_of(pace, steps, one.start_step, picture=picture)
    return Option(candidate, (Start("large", steps, one.start_step, cost),) if one.start_step else ())


@given(given=candidates, step=st.floats(0.01, 3), encode=st.floats(0, 9), picture=st.booleans())
def test_of_one_kind_and_pace_the_cheapest_is_the_best(
    given: list[tuple[int, float]], step: float, encode: float, picture: bool
) -> None:
    weighed = [Weighed(start, cosine, f"e{place}", start) for place, (start, cosine) in enumerate(given)]
    found, expected = choose([option(one, Pace(step, encode), picture=picture) for one in weighed]), best(weighed)
    assert (found.candidate.entry_id if found else None) == (expected.entry_id if expected else None)


def test_among_equal_costs_a_latent_comes_before_a_picture_however_similar() -> None:
    latent = option(Weighed(10, 0.7, "a", 10), Pace(), picture=False)
    picture = option(Weighed(10, 0.9, "b", 10), Pace(), picture=True)
    assert choose([picture, latent]) is latent
    assert choose([]) is None


def test_noise_is_taken_where_no_start_costs_less_and_of_equals_the_shorter_run() -> None:
    late = option(Weighed(25, 0.9, "a", 25), Pace(), picture=False)
    few = option(Weighed(2, 0.7, "b", 2), Pace(), picture=False, steps=5)
    ten = option(Weighed(7, 0.9, "c", 7), Pace(), picture=False, steps=10)
    assert choose([late], Start("large", 25, cost=25.0)) is None
    assert choose([late], Start("large", 50, cost=50.0)) is late
    assert choose([late, few, ten], Start("large", 5, cost=5.0)) is few  # 3 steps each, from an earlier level
    assert choose([late, few, ten], Start("large", 3, cost=3.0)) is None
