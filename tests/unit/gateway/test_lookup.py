"""The gateway's plans with a text extractor that is not sure, and without one, where other services are away too."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from protos import embedder_pb2, text_extractor_pb2
from services.gateway.lookup import UNSURE, Lookup
from shared.domain.errors import UnavailableError
from shared.domain.types import CacheMode, Modality, Plan, PlanSource, Request, Scope, Size, vector_bytes
from shared.models.card import ModelCard
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import open_backends

CLIPS = ModelCard(name="clips", path="noop:", role="video")
CLOSED = dict.fromkeys(("embedder_address", "match_predictor_address", "retriever_address"), "127.0.0.1:9")


@pytest.mark.parametrize(
    ("setting", "modality", "said"),
    [
        ({}, Modality.VIDEO, ["text_extractor: text_extractor_address is not set"]),
        ({}, Modality.IMAGE, []),
        ({"decouple": "off"}, Modality.VIDEO, []),
        ({"extractor": ""}, Modality.VIDEO, []),
    ],
)
async def test_a_gateway_starts_without_an_extractor(
    settings: Settings, setting: dict[str, str], modality: Modality, said: list[str]
) -> None:
    changed = settings.model_copy(update={**CLOSED, **setting})
    backends = await open_backends(changed, frozenset())
    context = Context(changed, backends)
    try:
        request = Request("a red fox in the snow", Size(64, 64), 10, 1.0, 1, modality=modality)
        (planned,) = await Lookup(context, ()).plan([request], CLIPS)
        assert planned.plan is not None
        assert planned.parts is None
        assert [one for one in planned.plan.degraded if one.startswith("text_extractor")] == said
        assert any(one.startswith("retriever") for one in planned.plan.degraded)
    finally:
        await context.close()
        await backends.close()


@pytest.mark.parametrize(
    ("sure", "plan", "reason"),
    [
        (True, Plan(PlanSource.NOISE, "clips", looked_up=True, reason="So."), "So."),
        (False, Plan(PlanSource.NOISE, "clips", looked_up=True, reason="So."), f"So. {UNSURE}"),
        (False, Plan(PlanSource.NOISE, "clips", reason="No search."), "No search."),
        (False, Plan(PlanSource.EXACT, "clips", looked_up=True, reason="A repeat."), "A repeat."),
    ],
)
async def test_a_plan_says_that_the_extractor_is_not_sure(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, sure: bool, plan: Plan, reason: str
) -> None:
    async def extracted(*_: Any) -> text_extractor_pb2.Parts:
        return text_extractor_pb2.Parts(object="a fox" if sure else "", background="snow" if sure else "", sure=sure)

    async def planned(*_: Any) -> Plan:
        return plan

    monkeypatch.setattr(Lookup, "_extract_parts", extracted)
    monkeypatch.setattr(Lookup, "_plan", planned)
    changed = settings.model_copy(update={**CLOSED, "text_extractor_address": "127.0.0.1:9"})
    backends = await open_backends(changed, frozenset())
    context = Context(changed, backends)
    try:
        request = Request("a fox in snow", Size(64, 64), 10, 1.0, 1, modality=Modality.VIDEO, cache=CacheMode.AUTO)
        (one,) = await Lookup(context, ()).plan([request], CLIPS)
        assert one.plan is not None
        assert one.plan.reason == reason
        assert (one.parts is not None) == sure
    finally:
        await context.close()
        await backends.close()


async def test_plans_that_are_not_admitted_open_no_breaker(settings: Settings) -> None:
    """A flood of Plan calls that fail must not switch the cache off for others."""
    changed = settings.model_copy(update=CLOSED)
    backends = await open_backends(changed, frozenset())
    context = Context(changed, backends)
    request = Request("a red fox in the snow", Size(64, 64), 10, 1.0, 1)
    try:
        lookup = Lookup(context, ())
        for _ in range(5):
            await lookup.plan([request], CLIPS, dry_run=True)
        assert not any(breaker.open for breaker in lookup._breakers.values())
        for _ in range(5):
            await lookup.plan([request], CLIPS)
        assert lookup._breakers["embedder"].open
        (planned,) = await lookup.plan([request], CLIPS, dry_run=True)
        assert "embedder: failed repeatedly and is not called for up to 30 s" in planned.degraded
    finally:
        await context.close()
        await backends.close()


@asynccontextmanager
async def asked_by_a_lookup(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[tuple[Lookup, dict[str, Any]]]:
    """Yield a lookup and its last message of each kind. The embedder answers; the others are away."""
    asked = dict[str, Any]()

    async def call(_: Lookup, method: Callable[..., Any], message: Any, limit_s: float | None = None) -> Any:
        asked[type(message).__name__] = message
        if not isinstance(message, embedder_pb2.EmbedTextRequest):
            raise UnavailableError("away")
        vector = vector_bytes(np.eye(1, 8, dtype=np.float32)[0])
        return embedder_pb2.EmbedTextResponse(embeddings=[embedder_pb2.Embedding(vector=vector)], encoder_hash="e1")

    monkeypatch.setattr(Lookup, "_call", call)
    changed = settings.model_copy(update={**CLOSED, "text_extractor_address": "127.0.0.1:9", **changes})
    backends = await open_backends(changed, frozenset())
    context = Context(changed, backends)
    try:
        yield Lookup(context, ()), asked
    finally:
        await context.close()
        await backends.close()


@pytest.mark.parametrize(
    ("changes", "owner"),
    [
        ({"scope": Scope.PRIVATE}, "private:acme:ada"),
        ({"scope": Scope.TENANT}, "tenant:acme"),
        ({"scope": Scope.TENANT, "cache": CacheMode.OFF}, "private:acme:ada"),
    ],
)
async def test_what_is_kept_of_a_prompt_is_for_its_own_callers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], owner: str
) -> None:
    """Another caller's seconds told that the prompt was sent before."""
    async with asked_by_a_lookup(settings, monkeypatch) as (lookup, asked):
        request = Request(
            "a fox", Size(64, 64), 10, 1.0, 1, modality=Modality.VIDEO, tenant="acme", user="ada", **changes
        )
        await lookup.plan([request], CLIPS)
        assert asked["EmbedTextRequest"].owner == owner
        assert ("ExtractRequest" in asked) == (request.cache is not CacheMode.OFF)
        if "ExtractRequest" in asked:
            assert asked["ExtractRequest"].owner == owner


@pytest.mark.parametrize(("sharing", "predicted"), [((), True), (("else",), True), (("acme",), False)])
async def test_the_predictor_is_not_asked_where_a_crowd_must_stand_behind_a_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, sharing: tuple[str, ...], predicted: bool
) -> None:
    """It knows no tenants: its answer would tell of a single one's entries."""
    changes: dict[str, Any] = {"public_crowd": 2, "public_tenants": sharing}
    async with asked_by_a_lookup(settings, monkeypatch, **changes) as (lookup, asked):
        request = Request("a fox", Size(64, 64), 10, 1.0, 1, tenant="acme")
        await lookup.plan([request], ModelCard(name="images", path="noop:"))
        assert ("PredictRequest" in asked) == predicted
        assert "PlanRequest" in asked
