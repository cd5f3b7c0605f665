from dataclasses import replace

import pytest

from services.cache_maintainer.admission import admit, offer_of
from shared.domain.types import (
    CacheMode,
    Candidate,
    Captured,
    CompatKey,
    Job,
    JobState,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Result,
    Scope,
    Size,
    Source,
)

COMPAT = CompatKey("w", "ddim:1", "float32", Size(64, 64), 50)


def job(**changes: object) -> Job:
    request = Request(prompt="p", size=Size(64, 64), steps=50, guidance=2.5, seed=1, user="u", scope=Scope.PRIVATE)
    captured = tuple(Captured(k, f"states/j/1/{k}", 100, "fp16", f"s{k}") for k in (10, 5))
    result = Result("pictures/j/1.png", "ps", 10, "large", "w", 50, captured=captured, compat=COMPAT)
    base = Job(
        id="j",
        request=request,
        plan=Plan(PlanSource.NOISE, "large"),
        state=JobState.SUCCEEDED,
        result=result,
        vector=b"0000",
        encoder_hash="e",
        exact_key="x",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_finished_job_becomes_an_entry_under_its_own_id() -> None:
    entry = admit(job())
    assert entry is not None
    assert (entry.id, entry.job_id, entry.exact_key, entry.encoder_hash) == ("j", "j", "x", "e")
    assert (entry.scope, entry.user, entry.compat) == (Scope.PRIVATE, "u", COMPAT)
    assert [state.step for state in entry.states] == [5, 10]
    assert entry.states[0].key == "states/j/1/5"


@pytest.mark.parametrize(
    "changes",
    [
        {"state": JobState.FAILED},
        {"result": None},
        {"plan": Plan(PlanSource.EXACT, "large")},
        {"request": replace(job().request, cache=CacheMode.READ)},
        {"request": replace(job().request, cache=CacheMode.OFF)},
    ],
)
def test_what_must_not_be_kept(changes: dict[str, object]) -> None:
    assert admit(job(**changes)) is None


def test_states_and_candidates_are_steps_of_the_t_that_was_planned() -> None:
    candidates = tuple(Candidate(name, "latent", 0.9, k, k, steps=T) for name, k, T in (("a", 2, 5), ("b", 20, 0)))
    plan = Plan(PlanSource.NOISE, "large", may_run=(ModelPlan("large", 0, steps=20),), candidates=candidates)
    planned = job(plan=plan, request=replace(job().request, steps_auto=True))
    entry = admit(replace(planned, plan=replace(plan, may_run=(ModelPlan("large", 0, steps=10),))))
    assert entry is not None
    assert [state.step for state in entry.latents] == [5]  # 10 is the end of a run of 10
    entry = admit(planned)
    assert entry is not None
    offer = offer_of(entry, planned, 0.0)
    assert (offer.total, [(one.allowed_step, one.steps) for one in offer.wishes]) == (20, [(2, 5), (20, 50)])


def test_a_stitched_run_offers_both_entries_as_used() -> None:
    parts = (Source("fox", "k", "s", "fp16"), Source("wood", "k2", "s2", "fp16"))
    stitched = job(plan=Plan(PlanSource.STITCHED, "large", start_step=15, sources=parts))
    entry = admit(stitched)
    assert entry is not None
    offer = offer_of(entry, stitched, 0.0)
    assert [(one.entry_id, one.start_step) for one in offer.pair] == [("fox", 15), ("wood", 15)]
    assert offer_of(entry, job(), 0.0).pair == []


def test_without_knowing_what_the_latents_fit_nothing_is_kept() -> None:
    unknown = replace(job().result, compat=None)  # type: ignore[type-var]
    assert admit(job(result=unknown)) is None


def test_without_an_embedding_only_exact_repeats_can_be_answered() -> None:
    entry = admit(job(vector=b""))
    assert entry is not None
    assert entry.states == ()
