"""Convert the nouns of `shared.domain.types` to protobuf messages and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from protos import common_pb2 as pb
from protos import retriever_pb2
from shared.domain.forecasts import Forecast
from shared.domain.parts import Parts
from shared.domain.truncation import told_once
from shared.domain.types import (
    CacheMode,
    Candidate,
    Job,
    JobState,
    Lead,
    Modality,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Scope,
    Size,
    Soonest,
    Source,
    Timings,
    Variation,
)

E = TypeVar("E", bound=StrEnum)

_STATES = {state: getattr(pb, f"JOB_STATE_{state.name}") for state in JobState}
_SOURCES = {source: getattr(pb, f"PLAN_SOURCE_{source.name}") for source in PlanSource}
_CACHES = {mode: getattr(pb, f"CACHE_MODE_{mode.name}") for mode in CacheMode}
_SCOPES = {scope: getattr(pb, f"SCOPE_{scope.name}") for scope in Scope}
_VARIATIONS = {one: getattr(pb, f"VARIATION_{one.name}") for one in Variation}
_MODALITIES = {modality: getattr(pb, f"MODALITY_{modality.name}") for modality in Modality}


def _back(table: dict[E, int], value: int, default: E) -> E:
    return next((key for key, number in table.items() if number == value), default)


def state_from_proto(value: int) -> JobState | None:
    """Return the job state; None for unspecified."""
    return next((state for state, number in _STATES.items() if number == value), None)


def cache_from_proto(value: int) -> CacheMode:
    return _back(_CACHES, value, CacheMode.AUTO)


def scope_from_proto(value: int) -> Scope:
    return _back(_SCOPES, value, Scope.TENANT)


def variation_from_proto(value: int) -> Variation:
    return _back(_VARIATIONS, value, Variation.AUTO)


def modality_from_proto(value: int) -> Modality:
    return _back(_MODALITIES, value, Modality.IMAGE)


def request_to_proto(request: Request) -> pb.Request:
    message = pb.Request(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        width=request.size.width,
        height=request.size.height,
        frames=request.frames,
        steps=request.steps,
        guidance=request.guidance,
        seed=request.seed,
        quality=request.quality,
        modality=_MODALITIES[request.modality],
        cache=_CACHES[request.cache],
        scope=_SCOPES[request.scope],
        priority=request.priority,
        drop_if_late=request.drop_if_late,
        savings=request.savings,
        fresh_noise=request.fresh_noise,
        user=request.user,
        variation=_VARIATIONS[request.variation],
        steps_auto=request.steps_auto,
        from_job=request.from_job,
        strength=request.strength if request.names_start else None,
        continue_job=request.continue_job,
        slo=request.slo,
    )
    if request.deadline_s is not None:
        message.deadline_s = request.deadline_s
    return message


def request_from_proto(message: pb.Request, *, tenant: str, seed_given: bool) -> Request:
    """Return a request with every field set by the gateway, which validates clients' requests."""
    return Request(
        prompt=message.prompt,
        negative_prompt=message.negative_prompt,
        size=Size(message.width, message.height),
        frames=message.frames or 1,
        steps=message.steps,
        guidance=message.guidance,
        seed=message.seed,
        seed_given=seed_given,
        quality=message.quality or "auto",
        modality=modality_from_proto(message.modality),
        cache=cache_from_proto(message.cache),
        scope=scope_from_proto(message.scope),
        priority=message.priority,
        deadline_s=message.deadline_s if message.HasField("deadline_s") else None,
        drop_if_late=message.drop_if_late,
        savings=message.savings,
        fresh_noise=message.fresh_noise,
        tenant=tenant,
        user=message.user,
        variation=variation_from_proto(message.variation),
        steps_auto=message.steps_auto,
        from_job=message.from_job,
        strength=message.strength if message.HasField("strength") else 1.0,
        continue_job=message.continue_job,
        slo=message.slo,
    )


_PLAN_PLAIN = ("model", "start_step", "similarity")
_PLAN_FIRST = ("entry_id", "state_key", "state_sha256", "state_codec")
"""Fields that name the first source for earlier versions."""
_PLAN_MORE = (
    "fresh_noise", "noise_seed", "weights_hash", "reason", "looked_up", "sampled", "miss_model", "miss_steps",
    "miss_prompted_from", "relation", "root", "background_root", "step_reuse",
    "for_deadline", "uncached", "region_until",
)  # fmt: skip


def plan_to_proto(plan: Plan) -> pb.Plan:
    message = pb.Plan(
        source=_SOURCES[plan.source],
        capture_steps=plan.capture_steps,
        sources=[_plain(pb.Source, one) for one in plan.sources],
        may_run=[_plain(pb.ModelPlan, one) for one in plan.may_run],
        candidates=[_plain(pb.Candidate, candidate) for candidate in plan.candidates],
        degraded=plan.degraded,
        **{name: getattr(plan, name) for name in (*_PLAN_PLAIN, *_PLAN_FIRST, *_PLAN_MORE)},
    )
    if plan.predicted_hit is not None:
        message.predicted_hit = plan.predicted_hit
    if plan.found is not None:
        message.found = plan.found
    if plan.fallback is not None:
        message.fallback.CopyFrom(plan_to_proto(plan.fallback))
    if plan.lead is not None:
        message.lead.CopyFrom(_plain(pb.Lead, plan.lead))
    if plan.soonest is not None:
        message.soonest.CopyFrom(_plain(pb.Soonest, plan.soonest))
    if plan.parts is not None:
        message.parts.CopyFrom(parts_to_proto(plan.parts))
    return message


def plan_from_proto(message: pb.Plan) -> Plan:
    return Plan(
        source=_back(_SOURCES, message.source, PlanSource.NOISE),
        capture_steps=tuple(message.capture_steps),
        sources=_sources(message),
        may_run=tuple(_model_plan(one) for one in message.may_run),
        candidates=tuple(_value(Candidate, one) for one in message.candidates),
        degraded=tuple(message.degraded),
        predicted_hit=message.predicted_hit if message.HasField("predicted_hit") else None,
        found=message.found if message.HasField("found") else None,
        fallback=plan_from_proto(message.fallback) if message.HasField("fallback") else None,
        lead=_value(Lead, message.lead) if message.HasField("lead") else None,
        parts=parts_from_proto(message),
        soonest=_value(Soonest, message.soonest) if message.HasField("soonest") else None,
        **{name: getattr(message, name) for name in (*_PLAN_PLAIN, *_PLAN_MORE)},
    )


def parts_to_proto(parts: Parts) -> pb.PromptParts:
    return pb.PromptParts(object=parts.object, background=parts.background)


def parts_from_proto(message: Any) -> Parts | None:
    """Return the field `parts` of a message; None where it is unset."""
    return _value(Parts, message.parts) if message.HasField("parts") else None


def _sources(message: pb.Plan) -> tuple[Source, ...]:
    """Return the sources; those of an earlier version's plan are one or none."""
    if message.sources:
        return tuple(_value(Source, one) for one in message.sources)
    first = Source(*(getattr(message, name) for name in _PLAN_FIRST))
    return () if first == Source("") else (first,)


def _model_plan(message: pb.ModelPlan) -> ModelPlan:
    guidance = message.guidance if message.HasField("guidance") else None
    steps = message.steps if message.HasField("steps") else None
    return ModelPlan(message.model, message.start_step, guidance, steps, message.prompted_from)


def forecast_to_proto(forecast: Forecast) -> retriever_pb2.Forecast:
    return _plain(retriever_pb2.Forecast, forecast)


def forecast_from_proto(message: retriever_pb2.Forecast) -> Forecast:
    return _value(Forecast, message)


def job_to_proto(job: Job) -> pb.Job:
    message = pb.Job(
        id=job.id,
        state=_STATES[job.state],
        request=request_to_proto(job.request),
        plan=plan_to_proto(job.plan),
        attempt=job.attempt,
        error=job.error,
        model=job.plan.model,
        warnings=job.warnings,
        created_at=job.created_at,
        updated_at=job.updated_at,
        seed_given=job.request.seed_given,
        predicted_s=job.predicted_s,
        standalone_s=job.standalone_s,
    )
    if job.deadline_met is not None:
        message.deadline_met = job.deadline_met
    if job.result is not None:
        message.model = job.result.model
        message.steps_run = job.result.steps_run
        message.skipped = job.result.skipped
        message.timings.CopyFrom(_plain(pb.Timings, job.result.timings))
        message.picture_bytes = job.result.picture_bytes
        message.picture_sha256 = job.result.picture_sha256
        del message.warnings[:]
        message.warnings.extend(told_once((*job.warnings, *job.result.warnings)))
    return message


def job_from_proto(message: pb.Job) -> Job:
    """Return the client's view of a job, without tenant and lease."""
    request = request_from_proto(message.request, tenant="", seed_given=message.seed_given)
    return Job(
        id=message.id,
        request=request,
        plan=plan_from_proto(message.plan),
        state=_back(_STATES, message.state, JobState.QUEUED),
        attempt=message.attempt,
        error=message.error,
        created_at=message.created_at,
        updated_at=message.updated_at,
        warnings=tuple(message.warnings),
        predicted_s=message.predicted_s,
        standalone_s=message.standalone_s,
    )


def timings_from_proto(message: pb.Timings) -> Timings:
    return _value(Timings, message)


_ON_THE_WIRE = {"allowed_step": "wished_step"}
"""Fields with another name in their protobuf message."""


def _plain(kind: Any, value: Any) -> Any:
    """Return a message of this kind with the value's fields."""
    sent, read, _ = _fields_of(value.__class__)
    return kind(**dict(zip(sent, read(value), strict=True)))


def _value(kind: Any, message: Any) -> Any:
    return kind(*_fields_of(kind)[2](message))


@cache  # each plan converts eight candidates of sixteen fields, four times per request
def _fields_of(kind: Any) -> tuple[Sequence[str], attrgetter[Any], attrgetter[Any]]:
    """Return the names of a type's fields on the wire, a reader of its values, and a reader of its message. The type
    has two fields at least: `attrgetter` of one name returns no tuple."""
    names = [field.name for field in fields(kind) if not field.kw_only]  # `unknown` is sent as JSON only
    sent = [_ON_THE_WIRE.get(name, name) for name in names]
    return sent, attrgetter(*names), attrgetter(*sent)
