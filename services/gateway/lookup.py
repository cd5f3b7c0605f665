"""Planning: ask text extractor, embedder, match predictor and retriever for a plan. A service that is away, late or
wrong costs only the hit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from protos import embedder_pb2, match_predictor_pb2, retriever_pb2, text_extractor_pb2
from protos.embedder_pb2_grpc import EmbedderServiceStub
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from protos.retriever_pb2_grpc import RetrieverServiceStub
from protos.text_extractor_pb2_grpc import TextExtractorServiceStub
from services.gateway.breaker import Breaker
from services.gateway.forecasts import Ahead
from services.gateway.response_checks import check_plan, check_vector
from services.gateway.uploads import upload_plan
from services.gateway.validation import check_work
from shared.domain.errors import AfterimageError, DeadlineError, UnavailableError
from shared.domain.forecasts import Forecast
from shared.domain.parts import Parts
from shared.domain.plan_rules import noise_plan
from shared.domain.truncation import UNSEARCHED
from shared.domain.types import CacheMode, Modality, Plan, PlanSource, Request, Timings, text_owner, visible_owners
from shared.models.card import ModelCard
from shared.models.vocabulary import unknown_share
from shared.runtime import rpc
from shared.runtime.rpc_types import forecast_to_proto, parts_to_proto, plan_from_proto, request_to_proto
from shared.runtime.telemetry import METRICS, log
from shared.service import Context

T = TypeVar("T")
UNSURE = "Whole prompts alone were compared: the text extractor is not sure of the prompt's object and background."
SERVICES = ("text_extractor", "embedder", "match_predictor", "retriever")


@dataclass
class Planned:
    """A request on its way to a job: its plan, its embedding, and the warnings about both."""

    request: Request
    card: ModelCard
    plan: Plan | None = None
    vector: bytes = b""
    encoder_hash: str = ""
    encoder_weights: str = ""
    parts: Parts | None = None
    """Object and background that the prompt names; None: not extracted."""
    unsure: bool = False
    """The text extractor is not sure of the parts, so that the search goes by the whole prompt."""
    object_vector: bytes = b""
    background_vector: bytes = b""
    unknown_share: float = 0.0
    dry_run: bool = False
    predicted_hit: bool | None = None
    warnings: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    ahead: Ahead | None = None
    """What the request finds in the lanes; None: the plan follows no deadline."""
    images: Sequence[Planned] = field(default=(), repr=False, compare=False)
    """All images of the request, this one included."""

    @property
    def others(self) -> list[Plan]:
        """The plans of the request's other images, as far as they are made."""
        return [one.plan for one in self.images if one is not self and one.plan is not None]

    def forecasts(self) -> Sequence[Forecast]:
        """Return what the image's runs would take now, behind the other images; empty where no deadline counts."""
        return () if self.ahead is None else self.ahead.forecasts(self.others)


class Lookup:
    """The clients of text extractor, embedder, match predictor and retriever, each behind its own circuit breaker."""

    def __init__(self, context: Context, served: Collection[str]) -> None:
        """served: the models that may continue from an image."""
        self._served = served
        self._settings, self._clock = context.settings, context.clock
        self._extracts = self._settings.decouple != "off" and bool(self._settings.extractor.strip())
        self._context = context
        for service in ("embedder", "match_predictor", "retriever"):
            context.channel(service)  # an unknown address ends the start
        self._breakers = {name: Breaker() for name in SERVICES}

    async def plan(
        self,
        requests: Sequence[Request],
        card: ModelCard,
        *,
        dry_run: bool = False,
        ahead: Ahead | None = None,
        warnings: Sequence[str] = (),
    ) -> list[Planned]:
        """Return the images of a request with their plans, which start from different roots. A failing cache never
        raises, unless the request names its start.

        requests: the same request with the seed of each image. ahead: what the request finds; None: its
        plans follow no deadline. warnings: those that the request has before.
        """
        first = Planned(requests[0], card, dry_run=dry_run, ahead=ahead, warnings=list(warnings))
        await self._extract(first)
        await self._embed(first)
        await self._predict(first)
        noted = [(list(first.warnings), list(first.degraded)) for _ in requests[1:]]
        images = [first]
        for request, (warnings, degraded) in zip(requests[1:], noted, strict=True):
            images.append(replace(first, request=request, warnings=warnings, degraded=degraded, timings=Timings()))
        for image in images:
            image.images = images
            await self.replan(image, exact=image.request.seed_given)
        return images

    async def replan(self, planned: Planned, *, exact: bool) -> None:
        """Ask the retriever, again if need be. exact: whether a stored image may be the answer."""
        start = self._clock.monotonic()
        plan: Plan | None
        if planned.request.upload is not None:
            plan = upload_plan(planned.request, planned.card)
        elif planned.request.named_job:
            plan = await self._plan_named(planned, exact)
        else:
            plan = await self._try("retriever", planned, lambda: self._plan(planned, exact))
        if plan is None:
            reason = f"Generated from noise: {planned.degraded[-1]}."
            card, kept = planned.card, self._settings.capture_steps
            plan = noise_plan(
                planned.request, card.name, card.weights_hash, kept, reason,
                degraded=planned.degraded, step_reuse=card.reuse_key,
            )  # fmt: skip
        elif planned.degraded:
            plan = replace(plan, degraded=tuple(dict.fromkeys((*planned.degraded, *plan.degraded))))
        if plan.looked_up and planned.unsure and plan.source is not PlanSource.EXACT:
            plan = replace(plan, reason=f"{plan.reason} {UNSURE}")
        planned.plan = plan if plan.source is PlanSource.EXACT else replace(plan, parts=planned.parts)
        planned.timings = replace(planned.timings, plan_s=self._clock.monotonic() - start)

    async def _extract(self, planned: Planned) -> None:
        """Extract object and background (FlexCache §4.2.1). Without a sure answer the whole prompt alone is used."""
        request, settings = planned.request, self._settings
        decoupled = self._extracts and (settings.decouple == "all" or request.modality is Modality.VIDEO)
        if not decoupled or request.cache is CacheMode.OFF or request.names_start:
            return
        if not self._context.addresses("text_extractor"):  # an older setup starts without this service
            self._without("text_extractor", planned, "text_extractor_address is not set")
            return
        start = self._clock.monotonic()
        found = await self._try("text_extractor", planned, lambda: self._extract_parts(planned.request))
        planned.timings = replace(planned.timings, extract_s=self._clock.monotonic() - start)
        if found is not None and found.sure:
            planned.parts = Parts(found.object, found.background)
        planned.unsure = found is not None and not found.sure

    async def _extract_parts(self, request: Request) -> text_extractor_pb2.Parts:
        message = text_extractor_pb2.ExtractRequest(prompts=[request.prompt], owner=text_owner(request))
        extractor = self._context.stub(TextExtractorServiceStub, "text_extractor")
        reply = await self._call(extractor.Extract, message, self._settings.extract_timeout_s)
        return reply.parts[0]

    async def _embed(self, planned: Planned) -> None:
        start = self._clock.monotonic()
        await self._try("embedder", planned, lambda: self._embed_text(planned))
        planned.timings = replace(planned.timings, embed_s=self._clock.monotonic() - start)

    async def _predict(self, planned: Planned) -> None:
        request = planned.request
        if not planned.vector or not request.cache.reads or request.names_start:
            return
        if self._settings.crowd(request.tenant) > 1:
            return  # the predictor knows no tenants: its answer would tell of a single one's entries
        start = self._clock.monotonic()
        planned.predicted_hit = await self._try("match_predictor", planned, lambda: self._predict_hit(planned))
        planned.timings = replace(planned.timings, predict_s=self._clock.monotonic() - start)

    async def _embed_text(self, planned: Planned) -> bool:
        """Embed the whole prompt and its parts in one call (FlexCache §5)."""
        parts = planned.parts or Parts()
        texts = [planned.request.prompt, *filter(None, (parts.object, parts.background))]
        message = embedder_pb2.EmbedTextRequest(texts=texts, owner=text_owner(planned.request))
        reply = await self._call(self._context.stub(EmbedderServiceStub, "embedder").EmbedText, message)
        embedding, *others = reply.embeddings
        vectors = iter([check_vector(one.vector) for one in others])
        planned.vector, planned.encoder_hash = check_vector(embedding.vector), reply.encoder_hash
        planned.object_vector = next(vectors, b"") if parts.object else b""
        planned.background_vector = next(vectors, b"") if parts.background else b""
        planned.encoder_weights = reply.encoder_weights
        planned.unknown_share = embedding.unknown_share
        unknown = [word for word in embedding.unknown_words if word not in planned.card.words]
        if len(unknown) < len(embedding.unknown_words):
            planned.unknown_share = unknown_share(planned.request.prompt, unknown)
        if never_read := [word for word in unknown if word not in planned.card.other_words]:
            words = ", ".join(never_read)
            planned.warnings.append(f"these words are not in the models' training vocabulary: {words}")
        if embedding.truncated:
            planned.warnings.append(UNSEARCHED)
        return True

    async def _predict_hit(self, planned: Planned) -> bool:
        request = planned.request
        owners = visible_owners(request.tenant, request.user, public=self._settings.shares(request.tenant))
        compat = planned.card.compat_for(request)
        message = match_predictor_pb2.PredictRequest(
            vector=planned.vector,
            encoder_hash=planned.encoder_hash,
            owners=owners,
            compat=str(compat),
        )
        reply = await self._call(self._context.stub(MatchPredictorServiceStub, "match_predictor").Predict, message)
        return bool(reply.hit)

    async def _plan(self, planned: Planned, exact: bool) -> Plan:
        message = retriever_pb2.PlanRequest(
            request=request_to_proto(planned.request),
            tenant=planned.request.tenant,
            seed_given=exact,
            vector=planned.vector,
            encoder_hash=planned.encoder_hash,
            encoder_weights=planned.encoder_weights,
            unknown_share=planned.unknown_share,
            dry_run=planned.dry_run,
            further_image=bool(planned.others),
            taken_roots=sorted({root for plan in planned.others for root in _roots(plan)}),
            taken_seeds=[one.request.seed for one in planned.images if one is not planned],
            model=planned.card.name,
            parts=None if planned.parts is None else parts_to_proto(planned.parts),
            object_vector=planned.object_vector,
            background_vector=planned.background_vector,
            forecasts=[forecast_to_proto(one) for one in planned.forecasts()],
        )
        if planned.predicted_hit is not None:
            message.predicted_hit = planned.predicted_hit
        reply = await self._call(self._context.stub(RetrieverServiceStub, "retriever").Plan, message)
        return check_plan(plan_from_proto(reply.plan), planned.request, planned.card, self._served, exact=exact)

    async def _plan_named(self, planned: Planned, exact: bool) -> Plan:
        """Return the plan of a request that names its start.

        Raises NotFoundError for a job without a visible image, InvalidRequestError for a whole clip above the limits,
        and UnavailableError without a retriever: an image from noise would not be what the client asked for.
        """
        request = planned.request
        try:
            plan = await self._plan(planned, exact)
        except (TimeoutError, DeadlineError) as error:
            limit_s = self._settings.call_timeout_s
            said = f"retriever: no plan from job {request.named_job!r} within {limit_s:g} s; retry"
            raise UnavailableError(said, retry_after_s=1.0) from error
        if (lead := plan.lead) is not None:
            check_work(request.size, lead.whole(request.frames), request.steps, self._settings, request.named_in)
        return plan

    async def _call(self, method: Callable[..., Awaitable[Any]], message: Any, limit_s: float | None = None) -> Any:
        limit_s = limit_s or self._settings.call_timeout_s
        # the timer on this side is for a peer that accepts the call and then hangs
        async with asyncio.timeout(limit_s * 1.5):
            return await rpc.call(method, message, timeout_s=limit_s)

    async def _try(self, service: str, planned: Planned, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Call a service; on failure return None and note the reason on the plan. Only admitted requests move the
        breaker: a dry run takes no place in the queue, so a flood of them must not switch the cache off for others."""
        breaker = self._breakers[service]
        now = self._clock.monotonic()
        if breaker.open if planned.dry_run else not breaker.allows(now):
            self._without(service, planned, "failed repeatedly and is not called for up to 30 s")
            return None
        try:
            answer = await ask()
        except (AfterimageError, TimeoutError, IndexError, ValueError) as error:
            if not planned.dry_run:
                breaker.failed(self._clock.monotonic())
            self._without(service, planned, _said(error), str(error))
            return None
        if not planned.dry_run:
            breaker.succeeded()
        return answer

    def _without(self, service: str, planned: Planned, what: str, logged: str = "") -> None:
        if service != "retriever" and not planned.request.cache.reads:
            return  # a request that does not read the cache lost nothing
        planned.degraded.append(f"{service}: {what}")
        METRICS.degraded.labels(service).inc(not planned.dry_run)
        log("gateway").warning("planned without a service", service=service, error=logged or what)


def _roots(plan: Plan) -> set[str]:
    """Return the roots that a plan and its fallback start from; a plan without a root names its entry."""
    both = (plan, plan.fallback) if plan.fallback is not None else (plan,)
    return {root for one in both for root in one.roots}


def _said(error: Exception) -> str:
    said = error.outside if isinstance(error, AfterimageError) else str(error)
    return said.splitlines()[0][:200] if said else type(error).__name__
