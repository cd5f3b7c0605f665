"""Pairs of object and background: chosen where both parts are similar, and only from what can be stitched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retriever.bounds import PAIR, Near, TableBound
from services.retriever.pairs import SIDE
from services.retriever.planning import options_of, plan_of
from services.retriever.question import Question, Rules
from services.retriever.seen import Seen
from services.retriever.starts import Found
from services.retriever.tables import PAPER_PAIRS
from services.retriever.variety import Variety
from shared.domain.masks import Mask
from shared.domain.parts import Parts
from shared.domain.types import (
    CompatKey,
    Entry,
    Hit,
    Modality,
    Plan,
    PlanSource,
    Request,
    Scope,
    Size,
    State,
    Variation,
)
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, KTable, Level

COMPAT = CompatKey("w1", "ddim:abc", "float32", Size(64, 64), 50, frames=16)
CARD = find_card("noop:")
PARTS = Parts("a red fox", "in the snow")
KS = (5, 10, 15, 20, 25)


def question(**changes: Any) -> Question:
    asked = Request(
        "a red fox in the snow", Size(64, 64), 50, 2.5, 7, modality=Modality.VIDEO, frames=16, user="ada", **changes
    )
    return Question(asked, "clips", replace(COMPAT, steps=asked.steps), encoder_hash="e1", parts=PARTS)


def entry(name: str, ks: Sequence[int] = KS, **changes: Any) -> Entry:
    base = Entry(
        id=name, job_id=name, prompt=f"prompt of {name}", tenant="default", user="bob", scope=Scope.TENANT,
        model="clips", compat=COMPAT, exact_key="", picture_key="p", picture_sha256="", encoder_hash="e1",
        created_at=0.0, states=tuple(State(name, k, f"states/{name}-1-{k}", 100, "fp16", f"s{k}") for k in ks),
        seed=len(name), mask=Mask(f"masks/{name}", f"m{name}", 70),
    )  # fmt: skip
    return replace(base, **changes)


FOX, WOOD = entry("fox"), entry("wood")


def plan(
    objects: Sequence[tuple[float, Entry]],
    backgrounds: Sequence[tuple[float, Entry]],
    whole: Sequence[tuple[float, Entry]] = (),
    *,
    asked: Question | None = None,
    pairs: KTable | None = PAPER_PAIRS,
    **more: Any,
) -> Plan:
    asked = asked or question()
    every = [*objects, *backgrounds, *whole]
    found = Found(
        [Hit(one.id, similarity) for similarity, one in whole],
        entries={one.id: one for _, one in every},
        objects=[Hit(one.id, similarity) for similarity, one in objects],
        backgrounds=[Hit(one.id, similarity) for similarity, one in backgrounds],
    )
    rules = Rules(TableBound({50: FIG_10}, steps=asked.request.steps, pairs=pairs), CARD.step_in, **more)
    return plan_of(options_of(asked, rules, found))


def test_a_pair_starts_where_both_parts_are_similar() -> None:
    made = plan([(0.93, FOX)], [(0.88, WOOD)])
    assert (made.source, made.start_step, made.similarity) == (PlanSource.STITCHED, 15, 0.88)
    assert [(one.entry_id, one.key, one.mask_key, one.mask_sha256) for one in made.sources] == [
        ("fox", "states/fox-1-15", "masks/fox", "mfox"),
        ("wood", "states/wood-1-15", "masks/wood", "mwood"),
    ]
    assert (made.root, made.background_root, made.roots) == ("fox", "wood", ("fox", "wood"))
    assert made.capture_steps == (20, 25)
    assert "the object of one clip (similarity 0.930) over the background of another (0.880)" in made.reason
    assert "prompt of" not in made.reason
    assert "FlexCache §3.2" in made.reason
    (one,) = made.candidates
    assert (one.kind, one.chosen, one.background_id, one.background_prompt) == (PAIR, True, "wood", "prompt of wood")
    assert (one.object_similarity, one.background_similarity) == (0.93, 0.88)


def test_one_similar_part_is_no_hit() -> None:
    """§3.2: a video needs both."""
    made = plan([(0.99, FOX)], [(0.64, WOOD)])
    assert made.source is PlanSource.NOISE
    assert "0.640, the lower one of object and background, is not above 0.650" in made.candidates[0].reason


def test_the_whole_prompt_wins_unless_the_pair_saves_more() -> None:
    whole = [(0.91, entry("whole"))]
    made = plan([(0.93, FOX)], [(0.91, WOOD)], whole)
    assert (made.source, made.start_step, made.entry_id) == (PlanSource.LATENT, 20, "whole")
    assert made.fallback is None
    made = plan([(0.97, FOX)], [(0.96, WOOD)], whole)
    assert (made.source, made.start_step) == (PlanSource.STITCHED, 25)
    assert made.fallback is not None
    assert (made.fallback.source, made.fallback.entry_id, made.fallback.start_step) == (PlanSource.LATENT, "whole", 20)


def test_without_a_table_of_pairs_none_starts() -> None:
    made = plan([(0.99, FOX)], [(0.99, WOOD)], pairs=None)
    assert made.source is PlanSource.NOISE
    assert "no K table was measured" in made.candidates[0].reason
    profiled = replace(PAPER_PAIRS, levels=(Level(5, 0.98),))
    assert plan([(0.99, FOX)], [(0.99, WOOD)], pairs=profiled).start_step == 5


def test_an_entry_that_gives_both_is_no_pair() -> None:
    assert plan([(0.99, FOX)], [(0.99, FOX)]).candidates == ()
    made = plan([(0.99, FOX), (0.9, WOOD)], [(0.99, FOX), (0.7, WOOD)])
    assert {one.entry_id for one in made.sources} == {"fox", "wood"}
    assert (made.entry_id, made.similarity) == ("wood", 0.9)


def test_entries_that_lack_the_allowed_state_give_their_place_to_others() -> None:
    """Hits leave late states alone: after many of them, the entry with the early state is not among the nearest."""
    late = [(0.99, entry(f"hit {number}", (15, 20, 25))) for number in range(2 * SIDE)]
    allowed = KTable((Level(10, 0.65),))
    made = plan([*late, (0.9, FOX)], [*late, (0.8, WOOD)], pairs=allowed)
    assert (made.source, made.start_step, made.similarity) == (PlanSource.STITCHED, 10, 0.8)
    assert [one.entry_id for one in made.sources] == ["fox", "wood"]
    none = plan([*late, (0.9, FOX)], late[1:], pairs=allowed)
    assert none.source is PlanSource.NOISE
    assert any("both have no state" in one.reason for one in none.candidates)


def test_both_states_must_be_at_one_noise_level() -> None:
    made = plan([(0.99, entry("fox", (5, 10, 25)))], [(0.99, entry("wood", (10, 20)))])
    assert (made.start_step, made.sources[1].key) == (10, "states/wood-1-10")
    assert "25 are allowed" in made.reason
    made = plan([(0.99, entry("fox", (5,)))], [(0.99, entry("wood", (10,)))])
    assert made.source is PlanSource.NOISE
    assert "no state at one step" in made.candidates[0].reason
    # T = 25: the states at K = 10 of 50 are those at 5
    short = plan([(0.8, FOX)], [(0.8, WOOD)], asked=question(), pairs=PAPER_PAIRS)
    assert short.start_step == 10
    half = question()
    half = replace(half, request=replace(half.request, steps=25))
    made = plan([(0.8, FOX)], [(0.8, entry("wood", compat=replace(COMPAT, steps=50)))], asked=half)
    assert (made.start_step, made.sources[0].key) == (5, "states/fox-1-10")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (entry("wood", mask=None), "background: its masks are not in the cache"),
        (entry("wood", compat=replace(COMPAT, frames=8)), "background: generated with other weights"),
        (entry("wood", compat=replace(COMPAT, size=Size(96, 64))), "background: generated with other weights"),
        (entry("wood", compat=replace(COMPAT, weights_hash="w2")), "background: generated with other weights"),
        (entry("wood", compat=replace(COMPAT, sampler="euler:1")), "background: generated with other weights"),
        (entry("wood", encoder_hash="e2"), "background: embedded by another encoder"),
        (entry("wood", scope=Scope.PRIVATE), "background: not visible"),
    ],
)
def test_what_cannot_be_stitched_is_refused_with_its_reason(other: Entry, why: str) -> None:
    made = plan([(0.99, FOX)], [(0.99, other)])
    assert made.source is PlanSource.NOISE
    (one,) = made.candidates
    assert one.reason.startswith(why)
    assert one.background_prompt == ("" if other.scope is Scope.PRIVATE else "prompt of wood")
    # a usable one further away takes its place
    assert plan([(0.99, FOX)], [(0.99, other), (0.9, entry("wood2"))]).sources[1].entry_id == "wood2"


def test_variety_holds_for_both_roots() -> None:
    def rules(asked: Question, **more: Any) -> dict[str, Any]:
        return {"variety": Variety(asked.request, Seen(), 1.0, **more)}

    asked = question()
    assert plan([(0.99, FOX)], [(0.99, WOOD)], asked=asked, **rules(asked)).source is PlanSource.STITCHED
    for root in ("fox", "wood", "deep"):
        wood = entry("wood", background_root="deep")
        made = plan([(0.99, FOX)], [(0.99, wood)], asked=asked, **rules(asked, taken_roots=frozenset([root])))
        assert made.source is PlanSource.NOISE
        assert "another image of this request starts from this root" in made.candidates[0].reason
    seed = frozenset([len("wood")])
    assert plan([(0.99, FOX)], [(0.99, WOOD)], asked=asked, **rules(asked, taken_seeds=seed)).is_miss
    new = question(variation=Variation.NEW)
    mine = entry("wood", user="ada")
    made = plan([(0.99, FOX)], [(0.99, mine)], asked=new, **rules(new))
    assert "the user has seen an image of this root" in made.candidates[0].reason
    assert made.candidates[0].relation == "topic"  # the closer one of both
    # a refused pair makes room for the next one
    assert (
        plan([(0.99, FOX)], [(0.99, mine), (0.9, entry("far"))], asked=new, **rules(new)).sources[1].entry_id == "far"
    )


def test_roots_of_a_stitched_clip_are_those_of_its_parts() -> None:
    stitched = entry("both", root="fox", background_root="wood")
    made = plan([(0.99, stitched)], [(0.98, entry("sea"))])
    assert made.roots == ("fox", "sea")
    made = plan([(0.99, entry("cat"))], [(0.98, stitched)])
    assert made.roots == ("cat", "wood")
    made = plan((), (), [(0.99, stitched)])
    assert (made.source, made.roots) == (PlanSource.LATENT, ("fox", "wood"))


def test_seen_counts_both_roots() -> None:
    seen, asked = Seen(), question()
    seen.planned(asked.request, plan([(0.99, FOX)], [(0.99, WOOD)]))
    assert seen.has_seen(("default", "ada"), "fox")
    assert seen.has_seen(("default", "ada"), "wood")


SIDES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), st.sets(st.sampled_from(KS))), max_size=6)


@given(SIDES, SIDES)
def test_a_chosen_pair_is_the_best_that_the_bound_allows(
    objects: list[tuple[float, int, set[int]]], backgrounds: list[tuple[float, int, set[int]]]
) -> None:
    """Every chosen pair has states of both at K, and no other pair could start later."""
    known: dict[int, Entry] = {}
    sides = [
        list(
            {
                name: (similarity, known.setdefault(name, entry(f"e{name}", sorted(ks))))
                for similarity, name, ks in side
            }.values()
        )
        for side in (objects, backgrounds)
    ]
    made = plan(*sides)
    bound = TableBound({}, pairs=PAPER_PAIRS)
    could = [
        max(
            (k for k in KS if k <= allowed and {k} <= {s.step for s in one.states} & {s.step for s in other.states}),
            default=0,
        )
        for of_object, one in sides[0]
        for of_background, other in sides[1]
        if one.id != other.id
        for allowed in bound.latest([Near(PAIR, min(of_object, of_background))], 50)
    ]
    assert made.start_step == max(could, default=0)
    if made.source is PlanSource.STITCHED:
        assert [f"states/{one.entry_id}-1-{made.start_step}" for one in made.sources] == [
            one.key for one in made.sources
        ]
    assert len(made.candidates) <= 4
