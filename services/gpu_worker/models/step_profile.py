"""What is known about a model's step times before its first step here: profiles in the catalog, or beside the
weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from services.gpu_worker.engine.schedulers import ByPriority, BySlack, Scheduler
from services.gpu_worker.engine.step_seconds import StepSeconds
from services.gpu_worker.families import MIXED, layout_of
from shared.domain.errors import AfterimageError
from shared.models import ModelCard
from shared.models.k_table import Profiles
from shared.models.latency import KIND
from shared.models.standalone import decode_of, line_of, pixels_of, read_shipped
from shared.models.step_regression import load_regression
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


async def scheduler_of(settings: Settings, profiles: Profiles, cards: Iterable[ModelCard]) -> Scheduler:
    """Return the scheduler of the settings; by slack, with a predictor for each of these models."""
    if settings.scheduler == "priority":
        return ByPriority()
    return BySlack(
        {card.name: await predictor_of(settings, profiles, card) for card in cards}, set_aside=settings.set_aside
    )


async def predictor_of(settings: Settings, profiles: Profiles, card: ModelCard) -> StepSeconds:
    """Return what the profiles say; one that knows nothing where the model was not measured. Only a regression that was
    measured with the worker's layout counts."""
    try:
        latency = await profiles.get(KIND, card.name, card.weights_hash)
        regression = await load_regression(profiles, card)
    except AfterimageError as error:  # the first steps correct what the shipped profile says
        log("gpu_worker").warning("measured step times not read", model=card.name, error=str(error))
        latency = regression = None
    latency = latency or await asyncio.to_thread(read_shipped, card)
    layout = layout_of(card, settings.layout, settings.batch_invariant)
    return StepSeconds(
        line_of(card, latency),
        decode_pixel_s=decode_of(latency) / pixels_of(card),
        together=layout in MIXED,
        regression=regression if regression is not None and regression.layout == layout else None,
    )
