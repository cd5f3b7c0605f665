from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.retriever.bounds import TableBound
from services.retriever.planning import from_noise, from_repeat, hash_uniform, options_of, plan_of
from services.retriever.question import Question, Rules
from services.retriever.selection import allowed_step
from services.retriever.starts import Found
from shared.domain.types import CacheMode, CompatKey, Entry, Hit, Plan, PlanSource, Request, Scope, Size, State
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, KTable, Level

SIZE = Size(64, 64)
COMPAT = CompatKey("w1", "ddim:abc", "float32", SIZE, 50)
CARD = find_card("noop:")


def rules(table: KTable = FIG_10, *, steps: int = 50, savings: float = 0.5, **more: Any) -> Rules:
    """Rules with the bound that this table gives."""
    return Rules(TableBound({table.steps: table}, steps=steps, savings=savings), CARD.step_in, **more)


def request(**changes: object) -> Request:
    base = Request(prompt="a red cube", size=SIZE, steps=50, guidance=2.5, seed=7, user="ada")
    return replace(base, **changes)  # type: ignore[arg-type]


def question(**changes: object) -> Question:
    asked = request(**changes)
    return Question(asked, "large", replace(COMPAT, steps=asked.steps), encoder_hash="e1")


def entry(name: str, ks: Sequence[int] = (5, 10, 15, 20, 25), **changes: object) -> Entry:
    base = Entry(
        id=name,
        job_id=name,
        prompt=f"prompt of {name}",
        tenant="default",
        user="ada",
        scope=Scope.TENANT,
        model="large",
        compat=COMPAT,
        exact_key="",
        picture_key=f"pictures/{name}/1.png",
        picture_sha256="p" + name,
        encoder_hash="e1",
        created_at=0.0,
        states=tuple(State(name, k, f"states/{name}/1/{k}", 100, "fp16", f"s{k}") for k in ks),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def plan(asked: Question, found: Sequence[tuple[float, Entry | None]], *, table: KTable = FIG_10, **more: Any) -> Plan:
    hits = [Hit(one.id if one else f"gone{i}", similarity) for i, (similarity, one) in enumerate(found)]
    entries = {one.id: one for _, one in found if one}
    own = rules(table, steps=asked.request.steps, savings=asked.request.savings, **more)
    return plan_of(options_of(asked, own, Found(hits, entries=entries)))


def test_starts_from_the_nearest_prompt() -> None:
    made = plan(question(), [(0.92, entry("a")), (0.70, entry("b"))])
    assert made.source is PlanSource.LATENT
    assert (made.entry_id, made.start_step, made.similarity) == ("a", 20, 0.92)
    assert (made.state_key, made.state_sha256, made.state_codec) == ("states/a/1/20", "s20", "fp16")
    assert [one.chosen for one in made.candidates] == [True, False]
    assert made.may_run[0].start_step == 20
    assert made.capture_steps == (25,)
    assert made.weights_hash == "w1"
    assert "20 of 50" in made.reason
    assert all(one.reason for one in made.candidates)


def test_the_best_state_of_all_candidates_wins_not_the_nearest_prompt() -> None:
    made = plan(question(), [(0.96, entry("nearest", ks=(5,))), (0.91, entry("second"))])
    assert (made.entry_id, made.start_step) == ("second", 20)
    assert "25 is not cached" in made.candidates[0].reason
    assert "saves fewer steps" in made.candidates[0].reason


def test_ties_go_to_the_more_similar() -> None:
    made = plan(question(), [(0.91, entry("a")), (0.93, entry("b"))])
    assert made.entry_id == "b"


def test_a_hole_is_named_and_filled_from_below() -> None:
    made = plan(question(), [(0.96, entry("a", ks=(5, 15)))])
    assert made.start_step == 15
    assert made.candidates[0].allowed_step == 25
    assert "that state is not cached" in made.reason


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (entry("x", compat=replace(COMPAT, weights_hash="w2")), "other weights"),
        (entry("x", compat=replace(COMPAT, sampler="euler:1")), "sampler"),
        (entry("x", compat=replace(COMPAT, size=Size(96, 64))), "size"),
        (entry("x", compat=replace(COMPAT, dtype="float16")), "dtype"),
        (entry("x", encoder_hash="e2"), "another encoder"),
        (entry("x", tenant="else"), "not visible"),
        (entry("x", scope=Scope.PRIVATE, user="bob"), "not visible"),
        (None, "no longer"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(other: Entry | None, reason: str) -> None:
    made = plan(question(), [(0.99, other)])
    assert made.source is PlanSource.NOISE
    assert made.found is False
    assert reason in made.candidates[0].reason
    assert made.capture_steps == (5, 10, 15, 20, 25)


def test_a_hidden_prompt_is_not_shown() -> None:
    made = plan(question(), [(0.99, entry("x", tenant="else"))])
    assert made.candidates[0].prompt == ""


def test_public_and_own_private_entries_are_visible() -> None:
    for one in (entry("x", tenant="else", scope=Scope.PUBLIC), entry("x", scope=Scope.PRIVATE)):
        assert plan(question(), [(0.99, one)]).start_step == 25


def test_another_schedule_only_where_the_noise_is_exactly_equal() -> None:
    half = plan(question(steps=25), [(0.99, entry("a"))])  # T = 25: K 10 and 20 of 50 are steps 5 and 10
    assert (half.start_step, half.state_key) == (10, "states/a/1/20")
    double = plan(question(steps=100), [(0.99, entry("a"))])
    assert (double.start_step, double.state_key) == (50, "states/a/1/25")
    odd = plan(question(steps=49), [(0.99, entry("a"))])
    assert odd.source is PlanSource.NOISE
    assert "no state at or before" in odd.candidates[0].reason


def test_why_nothing_is_reused_is_said() -> None:
    assert "0.500 is not above 0.650" in plan(question(), [(0.5, entry("a"))]).reason
    assert "nothing that fits" in plan(question(), []).reason
    assert "without a usable state" in plan(question(), [(0.99, entry("a", ks=()))]).reason
    unsafe = plan(question(), [(0.99, entry("a"))], table=KTable(()))
    assert "no start kept this model's quality" in unsafe.reason
    assert "too few to skip" in plan(question(steps=1), [(0.99, entry("a"))]).reason


def test_an_unrelated_prompt_starts_from_noise_below_the_floor() -> None:
    table = KTable((Level(15, -0.367),), floor=0.477)
    made = plan(question(), [(0.107, entry("fox"))], table=table)
    assert made.source is PlanSource.NOISE
    assert "0.107 is not above 0.477" in made.reason
    assert plan(question(), [(0.48, entry("fox"))], table=table).start_step == 15


def test_fresh_noise_only_where_a_state_is_reused() -> None:
    assert plan(question(fresh_noise=0.3), [(0.99, entry("a"))]).fresh_noise == 0.3
    assert plan(question(fresh_noise=0.3), []).fresh_noise == 0.0


def test_epsilon_draws_its_share_from_noise_and_the_same_request_decides_the_same() -> None:
    made = [plan(question(seed=seed), [(0.99, entry("a"))], epsilon=0.25) for seed in range(400)]
    noise = [one for one in made if one.source is PlanSource.NOISE]
    assert 70 <= len(noise) <= 130
    assert all(one.sampled and one.found and one.capture_steps for one in noise)
    again = [plan(question(seed=seed), [(0.99, entry("a"))], epsilon=0.25) for seed in range(400)]
    assert again == made


def test_capture_follows_the_cache_mode_and_insert_on_hit() -> None:
    hit = [(0.8, entry("a"))]
    assert plan(question(), hit).capture_steps == (15, 20, 25)
    assert plan(question(), hit, insert_on_hit=False).capture_steps == ()
    assert plan(question(cache=CacheMode.READ), hit).capture_steps == ()
    assert from_noise(question(cache=CacheMode.OFF), rules(), "").capture_steps == ()
    assert from_noise(question(cache=CacheMode.WRITE), rules(), "").capture_steps == (5, 10, 15, 20, 25)


def test_an_exact_repeat_names_the_stored_picture() -> None:
    made = from_repeat(question(), entry("a"))
    assert made.source is PlanSource.EXACT
    assert (made.state_key, made.state_sha256) == ("pictures/a/1.png", "pa")
    assert made.capture_steps == ()
    of_small = replace(entry("a"), model="small", compat=replace(entry("a").compat, weights_hash="s1"))
    by_small = from_repeat(question(), of_small)
    assert (by_small.model, by_small.weights_hash, by_small.candidates[0].model) == ("small", "s1", "small")


def test_lots_are_spread_and_independent_of_each_other() -> None:
    lots = [hash_uniform(request(seed=seed), "sample") for seed in range(1000)]
    assert all(0 <= one < 1 for one in lots)
    assert 0.4 < sum(lots) / len(lots) < 0.6
    assert hash_uniform(request(), "sample") != hash_uniform(request(), "epsilon")


ks = st.lists(st.sampled_from([1, 5, 10, 15, 20, 25, 30]), max_size=5, unique=True)
entries = st.builds(
    lambda ks, weights, tenant, scope, steps: (ks, weights, tenant, scope, steps),
    ks,
    st.sampled_from(["w1", "w1", "w2"]),
    st.sampled_from(["default", "default", "else"]),
    st.sampled_from(list(Scope)),
    st.sampled_from([50, 50, 25, 100]),
)


@given(
    found=st.lists(st.tuples(st.floats(-1, 1), entries), max_size=8),
    savings=st.floats(0, 1),
    steps=st.sampled_from([50, 25, 20, 7, 1]),
)
def test_never_a_k_above_the_wished_nor_a_state_that_does_not_fit(
    found: list[tuple[float, tuple[list[int], str, str, Scope, int]]], savings: float, steps: int
) -> None:
    made = [
        (
            similarity,
            entry(
                f"e{i}",
                [k for k in ks if k < T],
                tenant=tenant,
                scope=scope,
                compat=replace(COMPAT, weights_hash=w, steps=T),
            ),
        )
        for i, (similarity, (ks, w, tenant, scope, T)) in enumerate(found)
    ]
    asked = question(savings=savings, steps=steps)
    result = plan(asked, made)
    assert len(result.candidates) == len(found)
    if result.source is PlanSource.NOISE:
        assert result.start_step == 0
        assert not result.entry_id
        return
    similarity, chosen = next(pair for pair in made if pair[1].id == result.entry_id)
    assert 0 < result.start_step <= allowed_step(FIG_10, similarity, steps, savings) < max(steps, 2)
    state = next(state for state in chosen.states if state.key == result.state_key)
    assert state.step * steps == result.start_step * chosen.compat.steps  # exactly the same noise
    assert chosen.compat.weights_hash == "w1"
    assert chosen.scope is Scope.PUBLIC or chosen.tenant == "default"
    assert sum(one.chosen for one in result.candidates) == 1
    assert result.start_step == max(one.start_step for one in result.candidates)


def test_fresh_noise_is_not_the_noise_that_the_state_was_drawn_from() -> None:
    asked = question(fresh_noise=0.3)
    seed = plan(asked, [(0.99, entry("a"))]).noise_seed
    assert seed == plan(asked, [(0.99, entry("a"))]).noise_seed  # the same request draws the same picture
    assert seed != plan(question(fresh_noise=0.3, seed=8), [(0.99, entry("a"))]).noise_seed
    # b's own state may hold noise of this seed already
    assert seed != plan(asked, [(0.99, entry("b"))]).noise_seed

    def noise(of: int) -> torch.Tensor:
        return torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(of))

    own, share = noise(asked.request.seed), 0.3
    mixed = (1 - share) ** 0.5 * own + share**0.5 * noise(seed)
    assert abs(float(mixed.std()) - 1) < 0.05  # with the request's own seed: 1.38
