"""The nouns survive JSON and protobuf, and scopes never overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared import messages
from shared.ids import new_id
from shared.rpc_types import plan_from_proto, plan_to_proto, request_from_proto, request_to_proto
from shared.types import (
    CacheMode,
    Candidate,
    Modality,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Scope,
    Size,
    from_json,
    owner_key,
    to_json,
    vector_bytes,
    vector_from,
    visible_owners,
)

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
    entry_id=texts,
    state_key=texts,
    similarity=shares,
    capture_steps=st.lists(steps, max_size=4).map(tuple),
    may_run=st.lists(st.builds(ModelPlan, texts, steps), max_size=2).map(tuple),
    fresh_noise=shares,
    noise_seed=st.integers(0, 2**64 - 1),
    candidates=st.lists(candidates, max_size=3).map(tuple),
    reason=texts,
    degraded=st.lists(texts, max_size=2).map(tuple),
    predicted_hit=st.none() | st.booleans(),
    looked_up=st.booleans(),
    found=st.none() | st.booleans(),
)
requests = st.builds(
    Request,
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


@given(plans)
def test_a_plan_survives_json_and_protobuf(plan: Plan) -> None:
    assert from_json(Plan, to_json(plan)) == plan
    assert plan_from_proto(plan_to_proto(plan)) == plan


@given(requests)
def test_a_request_survives_json_and_protobuf(request: Request) -> None:
    assert from_json(Request, to_json(request)) == request
    assert request_from_proto(request_to_proto(request), tenant="default", seed_given=True) == request


def test_a_malformed_value_is_refused() -> None:
    with pytest.raises(ValidationError, match="source"):
        from_json(Plan, b'{"source": "dream", "model": "large"}')


@pytest.mark.parametrize("kind", messages.KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_message_survives_the_bus_encoding(kind: type[messages.Message]) -> None:
    samples = {"str": "x", "int": 3, "float": 0.5, "bool": True, "tuple[str, ...]": ("a", "b")}
    samples |= {"bool | None": False, "Modality": Modality.VIDEO, "tuple[tuple[str, str], ...]": (("w", "m"),)}
    samples |= {"tuple[tuple[str, int, float], ...]": (("m", 4, 0.5),)}
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
