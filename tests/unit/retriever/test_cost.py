"""Of latents alone the cheapest is the one with the fewest steps left: a replay need not reckon what they cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.retriever.cost import Offer, Pace, cheapest, cost_of
from services.retriever.selection import Weighed, best
from shared.domain.types import PICTURE_STEP, Candidate, State

STEPS = 50
candidates = st.lists(st.tuples(st.sampled_from([0, 5, 10, 25]), st.sampled_from([0.7, 0.8, 0.9])), max_size=8)


def offer(one: Weighed, pace: Pace, *, picture: bool) -> Offer:
    state = State(one.entry_id, PICTURE_STEP if picture else one.start_step, "", 1, "", "")
    candidate = Candidate(one.entry_id, "latent", one.similarity, one.allowed_step, one.start_step)
    return Offer(candidate, state, (), cost_of(pace, STEPS, one.start_step, picture=picture))


@given(given=candidates, step=st.floats(0.01, 3), encode=st.floats(0, 9), picture=st.booleans())
def test_of_one_kind_and_pace_the_cheapest_is_the_best(
    given: list[tuple[int, float]], step: float, encode: float, picture: bool
) -> None:
    weighed = [Weighed(start, cosine, f"e{place}", start) for place, (start, cosine) in enumerate(given)]
    offers = [offer(one, Pace(step, encode), picture=picture) for one in weighed if one.start_step]
    found, expected = cheapest(offers), best(weighed)
    assert (found.entry_id if found else None) == (expected.entry_id if expected else None)


def test_among_equal_costs_a_latent_comes_before_a_picture_however_similar() -> None:
    latent = offer(Weighed(10, 0.7, "a", 10), Pace(), picture=False)
    picture = offer(Weighed(10, 0.9, "b", 10), Pace(), picture=True)
    assert cheapest([picture, latent]) is latent
    assert cheapest([]) is None
