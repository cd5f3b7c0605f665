"""The relation of a request to an entry, and the entries that a user's earlier images leave to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retriever.planning import from_noise, options_of, plan_of
from services.retriever.question import Question
from services.retriever.relation import jaccard, normalised, relation
from services.retriever.seen import Image, Seen, Window
from services.retriever.starts import Found
from services.retriever.variety import Variety
from shared.domain.exact_repeats import entry_of
from shared.domain.plan_rules import degrade
from shared.domain.types import (
    CacheMode,
    Entry,
    Hit,
    Job,
    JobState,
    Plan,
    PlanSource,
    Relation,
    Request,
    Result,
    Scope,
    Variation,
)
from tests.unit.retriever.test_planning import COMPAT, entry, request, rules


def by(user: str, name: str, prompt: str, *, root: str = "", seed: int = 1) -> Entry:
    return entry(name, user=user, prompt=prompt, root=root, seed=seed)


def plan(
    asked: Request,
    found: Sequence[tuple[float, Entry]],
    seen: Seen | None = None,
    *,
    share: float = 1.0,
    on: bool = True,
) -> Plan:
    """A plan from these candidates. seen: None: the candidates are all the recent images."""
    if seen is None:
        seen = Seen()
        seen.note(one for _, one in found)
    own = rules(steps=asked.steps, variety=Variety(asked, seen, share, enforced=on))
    hits = [Hit(one.id, similarity) for similarity, one in found]
    entries = {one.id: one for _, one in found}
    question = Question(asked, "large", COMPAT, encoder_hash="e1")
    return plan_of(options_of(question, own, Found(hits, entries=entries)))


@pytest.mark.parametrize(
    ("asked", "made", "similarity", "expected"),
    [
        (request(prompt="A red  fox!", seed=2), by("ada", "a", "a red fox"), 1.0, Relation.REROLL),
        (request(prompt="a red fox", seed=1), by("ada", "a", "a red fox"), 1.0, Relation.EDIT),
        (request(prompt="a red fox", seed=2), replace(by("ada", "a", "a red fox"), seed=None), 1.0, Relation.REROLL),
        (request(prompt="a red fox at night"), by("ada", "a", "a red fox"), 0.1, Relation.EDIT),
        (request(prompt="vulpes in winter"), by("ada", "a", "a red fox"), 0.9, Relation.EDIT),
        (request(prompt="two blue boats"), by("ada", "a", "a red fox"), 0.7, Relation.TOPIC),
        (request(prompt="a red fox"), by("bob", "a", "a red fox"), 1.0, Relation.OTHER),
        (request(prompt="a red fox", tenant="else"), by("ada", "a", "a red fox"), 1.0, Relation.OTHER),
        (request(prompt="a red fox", user=""), by("", "a", "a red fox"), 1.0, Relation.OTHER),
    ],
)
def test_the_relation_to_an_entry(asked: Request, made: Entry, similarity: float, expected: Relation) -> None:
    assert relation(asked, made, similarity) is expected


@given(st.text(), st.text(), st.floats(-1, 1), st.sampled_from(["", "ada", "bob"]))
def test_every_pair_has_one_relation_and_words_are_compared_both_ways(
    one: str, other: str, similarity: float, user: str
) -> None:
    assert normalised(one.upper()) == normalised(normalised(one.upper()))
    assert jaccard(one, other) == jaccard(other, one)
    found = relation(request(prompt=one, user=user), by("ada", "a", other), similarity)
    assert (found is Relation.OTHER) == (user != "ada")
    assert (found is Relation.REROLL) == (user == "ada" and normalised(one) == normalised(other))


def test_a_reroll_starts_from_noise_or_from_a_root_that_the_user_has_not_seen() -> None:
    asked = request(prompt="a fox", seed=2)
    own, edit = by("ada", "a", "a fox"), by("ada", "b", "a fox at night", root="a")
    alone = plan(asked, [(1.0, own), (0.95, edit)])
    assert (alone.source, alone.relation, alone.found) == (PlanSource.NOISE, "reroll", True)
    assert [one.relation for one in alone.candidates] == ["reroll", "edit"]
    assert all("seen an image of this root" in one.reason for one in alone.candidates)
    assert "another seed of the same prompt" in alone.reason

    of_ada, of_bob = by("bob", "c", "a fox", root="a"), by("bob", "d", "a red fox")
    helped = plan(asked, [(1.0, own), (1.0, of_ada), (0.96, of_bob)])
    assert (helped.entry_id, helped.root, helped.relation) == ("d", "d", "other")

    alike = plan(asked, [(1.0, by("bob", "e", "A fox."))])
    assert alike.source is PlanSource.NOISE
    assert "is another user's image of the same prompt" in alike.reason
    assert plan(replace(asked, seed=1), [(1.0, by("bob", "e", "A fox.", seed=1))]).entry_id == "e"

    seen = Seen()
    seen.note([of_bob, by("eve", "f", "a fox", seed=3, root="d")])
    again = plan(asked, [(0.96, of_bob)], seen)
    assert again.source is PlanSource.NOISE
    assert "another user's image of the same prompt starts from this root" in again.reason
    assert plan(replace(asked, seed=3), [(0.96, of_bob)], seen).entry_id == "d"

    same = plan(replace(asked, variation=Variation.SAME), [(1.0, own)])
    assert (same.entry_id, same.relation) == ("a", "reroll")
    assert plan(asked, [(1.0, own)], on=False).entry_id == "a"


def test_a_reroll_is_known_although_its_own_entry_was_evicted() -> None:
    seen, asked = Seen(), request(prompt="a fox", seed=2)
    seen.note([by("ada", "a", "a fox")])
    edit = by("ada", "b", "a fox at night", root="a")
    assert plan(asked, [(0.95, edit)], seen).source is PlanSource.NOISE
    assert plan(replace(asked, seed=1), [(0.95, edit)], seen).entry_id == "b"  # the same seed: something else changed
    assert plan(replace(asked, user="bob"), [(0.95, edit)], seen).source is PlanSource.NOISE
    assert plan(replace(asked, user="bob", prompt="a fox in fog"), [(0.95, edit)], seen).entry_id == "b"
    seen.note([by("ada", "c", "a fox", seed=9)])  # the first image is no longer among the recent ones
    first = by("ada", "a", "a fox", seed=2)
    assert plan(asked, [(1.0, first)], seen).entry_id == "a"


def test_a_known_seed_starts_from_its_own_image_and_from_no_other_seeds() -> None:
    seventh, eighth = by("ada", "a", "a fox", seed=7), by("ada", "b", "a fox", seed=8)
    for guidance in range(2, 12):  # the request's seed draws among equals
        asked = request(prompt="a fox", seed=7, guidance=float(guidance))
        assert plan(asked, [(1.0, seventh), (1.0, eighth)]).entry_id == "a"


def test_a_root_that_is_gone_does_not_keep_its_user_from_the_chain() -> None:
    seen, asked = Seen(), request(prompt="a fox at dawn")
    chain = [by("ada", f"e{n}", f"a fox at {n}", root="gone") for n in range(10)]
    seen.note(chain)
    assert plan(asked, [(0.9, chain[-1])], seen, share=0.05).entry_id == "e9"
    assert plan(replace(asked, user="bob"), [(0.9, chain[-1])], seen, share=0.05).source is PlanSource.NOISE


def test_edits_keep_their_composition_unless_something_new_is_wanted() -> None:
    own = by("ada", "a", "a fox in the snow")
    edit = request(prompt="a fox in the snow at night")
    kept = plan(edit, [(0.9, own)])
    assert (kept.source, kept.relation, kept.root) == (PlanSource.LATENT, "edit", "a")
    new = plan(replace(edit, variation=Variation.NEW), [(0.9, own)])
    assert (new.source, new.relation) == (PlanSource.NOISE, "edit")
    other = plan(replace(edit, variation=Variation.NEW), [(0.9, own), (0.8, by("bob", "b", "a wolf"))])
    assert (other.entry_id, other.relation) == ("b", "other")
    unknown = plan(replace(edit, user="", variation=Variation.NEW), [(0.9, by("bob", "b", "a wolf"))])
    assert "an unknown user may have seen this image" in unknown.candidates[0].reason


def cached(seen: Seen, count: int, prefix: str = "x") -> None:
    seen.note(by(f"u{n}", f"{prefix}{n}", f"prompt {prefix}{n}") for n in range(count))


def test_no_root_is_behind_more_than_its_share_of_the_images_of_others() -> None:
    seen, root = Seen(), by("bob", "r", "a fox")
    seen.note([root])
    asked = request(prompt="a wolf")
    few = plan(asked, [(0.9, root)], seen, share=0.05)
    assert (few.source, few.found) == (PlanSource.NOISE, True)
    assert "behind 0 of the 0 recent images of other users; one more would exceed 5%" in few.candidates[0].reason
    cached(seen, 18)
    assert plan(asked, [(0.9, root)], seen, share=0.05).source is PlanSource.NOISE  # 1 of 19
    cached(seen, 1, "y")
    assert plan(asked, [(0.9, root)], seen, share=0.05).entry_id == "r"  # 1 of 20
    descendant = by("u1", "d", "a fox too", root="r")
    seen.note([descendant])
    assert plan(asked, [(0.9, root)], seen, share=0.05).source is PlanSource.NOISE  # 2 of 21
    assert plan(asked, [(0.9, descendant)], seen, share=0.05).source is PlanSource.NOISE
    assert plan(replace(asked, user="bob"), [(0.9, descendant)], seen, share=0.05).entry_id == "d"  # their own root
    assert plan(replace(asked, variation=Variation.SAME), [(0.9, root)], seen, share=0.05).entry_id == "r"


@given(
    asked=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=120),
    share=st.sampled_from([0.05, 0.1, 0.3]),
)
def test_the_share_holds_after_every_request(asked: list[tuple[int, int, bool]], share: float) -> None:
    """Requests of five users, who know each other's four topics; some plans are cached at once, others never."""
    seen, made = Seen(), list[Entry]()
    for number, (user, topic, is_cached) in enumerate(asked):
        one = request(prompt=f"topic {topic} {number}", user=f"u{user}", seed=number)
        seen.planning(one)
        planned = plan(
            one, [(0.9, other) for other in made if other.prompt.startswith(f"topic {topic}")], seen, share=share
        )
        seen.planned(one, planned)
        if is_cached:
            made.append(by(one.user, f"e{number:03}", one.prompt, root=planned.root, seed=number))
            seen.note(made[-1:])
    for root in {one.root_id for one in made}:
        owner = seen.owner_of(root)
        behind, images = seen.others("default", root, owner)
        assert behind <= share * images or behind == 0


def test_a_plan_counts_at_once_and_its_entry_replaces_it() -> None:
    seen, asked = Seen(), request(prompt="a fox", seed=2)
    first = plan(asked, [], seen)
    seen.planned(asked, first)
    assert seen.rerolls(replace(asked, seed=3))
    assert not seen.rerolls(asked)
    assert seen.others("default", "none", None) == (0, 1)
    seen.planned(asked, first)  # planned twice
    made = by("ada", "a", "a fox", seed=2)
    seen.note([made])
    seen.note([made])
    assert seen.others("default", "a", None) == (1, 1)
    assert seen.others("default", "a", ("default", "ada")) == (0, 0)
    seen.planning(asked)
    assert seen.rerolls(replace(asked, seed=3))


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=40))
def test_a_window_counts_what_it_holds(moves: list[tuple[int, bool, bool]]) -> None:
    window = Window(4)
    for number, older, gone in moves:
        if gone:
            window.remove(f"i{number}")
        else:
            image = Image(("t", f"u{number % 2}"), b"p", number, f"r{number % 3}", shared=number < 7)
            window.add(f"i{number}", image, older=older)
        assert len(window) <= 4
        held = [image for image in (window.get(f"i{n}") for n in range(10)) if image is not None and image.shared]
        for n in range(3):
            assert window.counts["root", "t", f"r{n}"] == sum(image.root == f"r{n}" for image in held)
        assert window.counts["images", "t"] == len(held)
        for n in range(2):
            assert window.counts["images", "t", f"u{n}"] == sum(image.owner[1] == f"u{n}" for image in held)


@pytest.mark.parametrize("hidden", [{"scope": Scope.PRIVATE}, {"cache": CacheMode.OFF}])
def test_nothing_of_a_plan_changes_with_what_others_keep_to_themselves(hidden: dict[str, Any]) -> None:
    """A colleague planted an image, and read in later plans whether a private image of a prompt started from it."""
    planted = by("eve", "r", "a fox in the snow")
    seen, secret = Seen(), request(prompt="a fox at dusk", user="ada", seed=4, **hidden)
    seen.note([planted])
    cached(seen, 60)
    probes = [
        request(prompt=prompt, user=user, seed=9, variation=variation)
        for prompt in (secret.prompt, "a fox")
        for user in ("bob", "eve")
        for variation in Variation
    ]
    before = [plan(probe, [(0.9, planted)], seen, share=0.05) for probe in probes]
    started = plan(secret, [(0.9, planted)], seen, share=0.05)
    assert started.entry_id == "r"
    seen.planned(secret, started)
    if "scope" in hidden:
        seen.note([replace(by("ada", "p", secret.prompt, root="r", seed=4), scope=Scope.PRIVATE)])
    assert [plan(probe, [(0.9, planted)], seen, share=0.05) for probe in probes] == before
    assert [seen.asked_before(probe) for probe in probes] == [False] * len(probes)


def test_a_private_root_does_not_confirm_its_prompt() -> None:
    """A shared image that grew from a private one refused requests of the private one's words, and said why."""
    seen, shared = Seen(), by("ada", "d", "a wolf", root="p", seed=5)
    seen.note([replace(by("ada", "p", "a fox", seed=4), scope=Scope.PRIVATE), shared])
    asked = request(prompt="a fox", user="bob", seed=9)
    assert plan(asked, [(0.9, shared)], seen).entry_id == "d"
    assert plan(replace(asked, user="ada"), [(0.9, shared)], seen).source is PlanSource.NOISE


def test_equal_candidates_are_drawn_by_the_seed() -> None:
    found = [(0.92 + n / 1e4, by(f"u{n}", f"e{n}", f"fox {n}")) for n in range(4)]
    further = (0.905, by("u9", "e9", "fox 9"))
    taken = [plan(request(prompt="a wolf", seed=seed), [*found, further]).entry_id for seed in range(200)]
    assert {*taken} == {"e0", "e1", "e2", "e3"}
    assert all(taken.count(one) >= 25 for one in {*taken})
    assert taken == [plan(request(prompt="a wolf", seed=seed), [*found, further]).entry_id for seed in range(200)]
    same = request(prompt="a wolf", variation=Variation.SAME)
    assert plan(same, found).entry_id == "e3"


def test_a_plan_from_noise_names_the_relation_that_it_found() -> None:
    asked = request(prompt="a fox", seed=2)
    question = Question(asked, "large", COMPAT, encoder_hash="e1")
    seen = Seen()
    assert from_noise(question, rules(variety=Variety(asked, seen, 1.0)), "").relation == "topic"
    unknown = Variety(replace(asked, user=""), seen, 1.0)
    assert from_noise(question, rules(variety=unknown), "").relation == "other"
    seen.note([by("ada", "a", "a fox")])
    assert from_noise(question, rules(variety=Variety(asked, seen, 1.0)), "").relation == "reroll"
    assert from_noise(question, rules(), "").relation == ""


def test_an_entry_inherits_the_root_of_its_plan_unless_it_began_from_noise() -> None:
    own = by("ada", "a", "a fox in the snow")
    hit = plan(request(prompt="a fox in the snow at night"), [(0.9, own)])
    result = Result("pictures/b", "", 1, "large", "w1", 30, compat=COMPAT)
    job = Job(
        "b",
        request(prompt="a fox in the snow at night", seed=3),
        hit,
        JobState.SUCCEEDED,
        result=result,
        encoder_hash="e1",
    )
    second = entry_of(job)
    assert second is not None
    assert (second.root_id, second.seed) == ("a", 3)
    second = replace(second, states=entry("b").states)
    third = plan(request(prompt="a fox at night"), [(0.95, second)])
    assert (third.entry_id, third.root) == ("b", "a")
    older = entry_of(replace(job, plan=replace(hit, root="")))  # by a version without roots
    assert older is not None
    assert older.root_id == hit.entry_id
    lost = entry_of(replace(job, plan=degrade(hit, "blobs: gone")))
    assert lost is not None
    assert lost.root_id == "b"
