"""`/v1/models`, and what supervisors and load balancers ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.gateway.http.api import READS, Api, refusals
from services.gateway.http.errors import HttpError
from services.gateway.http.fields import Model, Models, Status
from services.gateway.http.identity import caller
from shared.models import ModelCard


def routes(api: Api) -> APIRouter:
    """Return the routes about models and the process."""
    router = APIRouter()
    video = [api.models.video] if api.models.video else []
    cards = {card.name: card for card in (*api.models.cards.values(), *video)}

    @router.get("/v1/models", response_model=Models, responses=READS)
    async def models(request: Request) -> Response:
        """Return the served models."""
        caller(request)  # checks the key and the tenant
        return JSONResponse({"object": "list", "data": [_model(card, api) for card in cards.values()]})

    @router.get("/v1/models/{model:path}", response_model=Model, responses=READS)
    async def model(request: Request, model: str) -> Response:
        """Return one model, by its id or role."""
        caller(request)  # checks the key and the tenant
        name = {"large": api.models.large, "small": api.models.small}.get(model, model)
        if name not in cards:
            rule = "model: is not served here; GET /v1/models lists what is"
            raise HttpError(404, rule, "model", "model_not_found", "not_found_error")
        return JSONResponse(_model(cards[name], api))

    @router.get("/health", response_model=Status, responses=refusals())
    async def health() -> Response:
        """Answer that the process runs; needs no key."""
        return JSONResponse({"status": "ok", "away": []})

    @router.get("/ready", response_model=Status, responses=refusals() | {503: {"model": Status}})
    async def ready() -> Response:
        """Return whether the gateway takes requests: not while it drains, or a server that it needs is away."""
        away = sorted(api.readiness.away)
        status = "draining" if api.calls.fanout.draining else "not ready" if away else "ready"
        return JSONResponse({"status": status, "away": away}, 200 if status == "ready" else 503)

    return router


def _model(card: ModelCard, api: Api) -> dict[str, Any]:
    models = api.models
    roles = [role for role, name in (("large", models.large), ("small", models.small)) if name == card.name]
    facts = {
        "modality": "image" if card.name in models.cards else "video",
        "roles": roles,
        "size": str(card.default_size),
        "steps": card.default_steps,
    }
    return {
        "id": card.name,
        "object": "model",
        "created": int(api.started_at),
        "owned_by": "afterimage",
        "afterimage": facts,
    }
