"""The nouns survive JSON and protobuf, and scopes never overlap."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.domain import messages
from shared.domain.ids import new_id
from shared.domain.parts import Parts
from shared.domain.types import (
    CacheMode,
    Candidate,
    Captured,
    CompatKey,
    Job,
    JobState,
    Lead,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Result,
    Scope,
    Size,
    Source,
    from_json,
    owner_key,
    text_owner,
    to_json,
    vector_bytes,
    vector_from,
    visible_owners,
)
from shared.runtime.rpc_types import plan_from_proto, plan_to_proto, request_from_proto, request_to_proto

texts = st.text(max_size=20)
shares = st.floats(0, 1, width=32)
steps = st.integers(0, 1000)
candidates = st.builds(
    Candidate, texts, st.sampled_from(["latent", "exact"]), shares, steps, steps, texts, st.booleans()
)
plans = st.builds(
    Plan,
    source=st.sampled_from(PlanSource),
    model=texts,
    start_step=steps,
    sources=st.lists(st.builds(Source, texts.filter(bool), *[texts] * 7), max_size=2).map(tuple),
    similarity=shares,
    capture_steps=st.lists(steps, max_size=4).map(tuple),
    may_run=st.lists(
        st.builds(ModelPlan, texts, steps, st.none() | shares, st.none() | st.integers(1, 1000)), max_size=2
    ).map(tuple),
    fresh_noise=shares,
    noise_seed=st.integers(0, 2**64 - 1),
    candidates=st.lists(candidates, max_size=3).map(tuple),
    reason=texts,
    degraded=st.lists(texts, max_size=2).map(tuple),
    predicted_hit=st.none() | st.booleans(),
    looked_up=st.booleans(),
    found=st.none() | st.booleans(),
    background_root=texts,
    step_reuse=texts,
    region_until=steps,
    parts=st.none() | st.builds(Parts, texts, texts),
)
requests = st.builds(
    Request,
    steps_auto=st.booleans(),
    prompt=texts,
    size=st.builds(Size, st.integers(1, 4096), st.integers(1, 4096)),
    steps=st.integers(1, 1000),
    guidance=st.floats(0, 30),
    seed=st.integers(0, 2**64 - 1),
    cache=st.sampled_from(CacheMode),
    scope=st.sampled_from(Scope),
    priority=st.integers(-5, 9),
    deadline_s=st.none() | st.floats(0.1, 1e6),
    savings=st.floats(0, 1),
    user=texts,
)


RESULT = Result(
    "pictures/a", "ab", 7, "tiny", "w", 50, captured=(Captured(5, "states/a", 64, "raw", "cd"),),
    compat=CompatKey("w", "ddim", "float32", Size(64, 64), 50),
)  # fmt: skip


def with_more(tree: Any) -> Any:
    """The tree as a newer version writes it: one more field in each part."""
    if isinstance(tree, list):
        return [with_more(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    return {name: with_more(part) for name, part in tree.items()} | {"new": {"nested": [1, "?", {"?": 0.5}]}}


@given(plans)
def test_a_plan_survives_json_and_protobuf(plan: Plan) -> None:
    assert from_json(Plan, to_json(plan)) == plan
    assert plan_from_proto(plan_to_proto(plan)) == plan


@given(requests)
def test_a_request_survives_json_and_protobuf(request: Request) -> None:
    assert from_json(Request, to_json(request)) == request
    assert request_from_proto(request_to_proto(request), tenant="default", seed_given=True) == request


@given(plans, requests)
def test_fields_of_another_version_survive_at_every_level(plan: Plan, request: Request) -> None:
    plan = replace(plan, fallback=Plan(PlanSource.IMAGE, "small", may_run=(ModelPlan("small", 5),)))
    for value in (plan, request, RESULT):
        newer = with_more(json.loads(to_json(value)))
        read = from_json(type(value), json.dumps(newer))
        assert read == value
        assert hash(read) == hash(value)
        assert json.loads(to_json(read)) == newer
        assert json.loads(to_json(replace(read))) == newer  # what changes a value keeps the rest of it


def test_a_part_that_moves_takes_its_unknown_fields_along() -> None:
    fallback = (
        b'{"source": "image", "model": "small", "upscaler": {"by": 2}, "may_run": [{"model": "s", "start_step": 3}]}'
    )
    plan = from_json(Plan, b'{"source": "latent", "model": "large", "fallback": ' + fallback + b"}")
    assert plan.unknown is None
    assert plan.fallback is not None
    moved = json.loads(to_json(replace(plan.fallback, reason="no worker runs large")))
    assert (moved["upscaler"], moved["reason"]) == ({"by": 2}, "no worker runs large")


def test_a_source_that_a_worker_of_an_earlier_version_changed_counts() -> None:
    """Such a worker changes the four fields of the first source, and keeps `sources` as it was."""
    sources = (Source("fox", "states/20", "s20", "fp16"), Source("hen", "states/h", "sh", "int8"))
    plan = Plan(PlanSource.LATENT, "large", 20, sources)
    smaller = json.loads(to_json(plan)) | {"start_step": 15, "state_key": "states/15", "state_sha256": "s15"}
    assert from_json(Plan, json.dumps(smaller)).sources == (Source("fox", "states/15", "s15", "fp16"),)
    four = dict.fromkeys(("entry_id", "state_key", "state_sha256", "state_codec"), "")
    miss = json.loads(to_json(plan)) | {"source": "noise", "start_step": 0} | four
    assert from_json(Plan, json.dumps(miss)).sources == ()


def test_an_unknown_field_excuses_no_malformed_one() -> None:
    with pytest.raises(ValidationError, match="source") as caught:
        from_json(Plan, b'{"source": "dream", "model": "large", "new": 1}')
    assert [error["loc"] for error in caught.value.errors()] == [("source",)]


def test_a_message_of_a_newer_version_keeps_what_this_one_does_not_know() -> None:
    body = b'{"job_id": "a", "lane": "l", "model": "m", "source": "superposed", "modality": "audio", "tempo": 3}'
    again = json.loads(messages.encode(messages.decode("JobQueued", body))[1])
    assert {name: again[name] for name in ("source", "modality", "tempo")} == {
        "source": "superposed", "modality": "audio", "tempo": 3,
    }  # fmt: skip


def test_a_malformed_value_is_refused() -> None:
    with pytest.raises(ValidationError, match="source"):
        from_json(Plan, b'{"source": "dream", "model": "large"}')


@pytest.mark.parametrize("kind", messages.KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_message_survives_the_bus_encoding(kind: type[messages.Message]) -> None:
    samples = {"str": "x", "int": 3, "float": 0.5, "bool": True, "tuple[str, ...]": ("a", "b")}
    samples |= {"bool | None": False, "tuple[tuple[str, str], ...]": (("w", "m"),)}
    samples |= {"tuple[tuple[str, int, float], ...]": (("m", 4, 0.5),), "tuple[tuple[str, int], ...]": (("m", 4),)}
    values: dict[str, Any] = {name: samples[str(hint)] for name, hint in kind.__annotations__.items()}
    message = kind(**values)
    assert messages.decode(*messages.encode(message)) == message


def test_vectors_keep_every_bit() -> None:
    vector = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    assert np.array_equal(vector_from(vector_bytes(vector)), vector)


def test_an_owner_key_is_visible_only_inside_its_scope() -> None:
    mine, theirs = visible_owners("acme", "ann"), visible_owners("acme", "bob")
    other_tenant = visible_owners("evil", "ann")
    private, tenant, public = (owner_key(scope, "acme", "ann") for scope in Scope)
    assert private in mine
    assert private not in theirs
    assert private not in other_tenant
    assert tenant in theirs
    assert tenant not in other_tenant
    assert public in other_tenant


def test_ids_are_unique_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(one) == 26 for one in ids)
    assert [one[:9] for one in ids] == sorted(one[:9] for one in ids)


def test_a_plan_of_before_models_had_a_t_of_their_own_runs_the_requests() -> None:
    old = b'{"source": "image", "model": "small", "start_step": 4, "may_run": [{"model": "small", "start_step": 4}]}'
    assert from_json(Plan, old).run_steps(20) == 20
    assert Plan(PlanSource.IMAGE, "turbo", 3, may_run=(ModelPlan("turbo", 3, steps=10),)).run_steps(50) == 10


def test_the_work_of_a_clip_that_goes_on_counts_the_frames_before_it() -> None:
    request = Request(prompt="a fox", size=Size(64, 32), steps=10, guidance=1.0, seed=1, frames=4)
    plan = Plan(PlanSource.NOISE, "clips", lead=Lead("j", "pictures/j/1.png", "0" * 64, frames=20, held=1))
    whole = Job("k", request, plan, JobState.QUEUED)
    assert whole.frames == 23
    assert whole.pixel_steps == (4 * 10 + 19) * 64 * 32
    assert replace(whole, plan=replace(plan, lead=None)).pixel_steps == 4 * 10 * 64 * 32


@pytest.mark.parametrize(
    ("scope", "cache", "owner"),
    [
        (Scope.PRIVATE, CacheMode.AUTO, "private:acme:ada"),
        (Scope.TENANT, CacheMode.AUTO, "tenant:acme"),
        (Scope.PUBLIC, CacheMode.READ, "public"),
        (Scope.TENANT, CacheMode.OFF, "private:acme:ada"),
        (Scope.PUBLIC, CacheMode.OFF, "private:acme:ada"),
    ],
)
def test_what_is_kept_of_texts_is_kept_for_those_who_may_see_the_entry(
    scope: Scope, cache: CacheMode, owner: str
) -> None:
    request = Request("a fox", Size(64, 64), 10, 1.0, 1, tenant="acme", user="ada", scope=scope, cache=cache)
    assert text_owner(request) == owner
