"""What is known about a model's step times before its first step here: profiles in the catalog, or beside the
weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from services.gpu_worker.engine.schedulers import ByPriority, BySlack, Scheduler
from services.gpu_worker.engine.step_seconds import Line, StepSeconds, line_through
from services.gpu_worker.families import MIXED, layout_of
from shared.domain.errors import AfterimageError
from shared.models import ModelCard
from shared.models.k_table import Profiles
from shared.models.latency import FILE, KIND
from shared.models.step_regression import load_regression
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


async def scheduler_of(settings: Settings, profiles: Profiles, cards: Iterable[ModelCard]) -> Scheduler:
    """Return the scheduler of the settings; by slack, with a predictor for each of these models."""
    if settings.scheduler == "priority":
        return ByPriority()
    return BySlack({card.name: await predictor_of(settings, profiles, card) for card in cards})


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
        decode_pixel_s=_decode_s(latency) / pixels_of(card),
        together=layout in MIXED,
        regression=regression if regression is not None and regression.layout == layout else None,
    )


def read_shipped(card: ModelCard) -> dict[str, Any] | None:
    """Read the `latency.json` beside the weights; None if there is none, or an unreadable one."""
    if card.is_noop:
        step_s, row_s = (float(card.noop_options.get(key, 0)) / 1000 for key in ("step_ms", "row_ms"))
        return {"step_s": {str(rows): step_s + rows * row_s for rows in (1, 2)}, "decode_s": 0.0}
    try:
        found = json.loads((card.folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def line_of(card: ModelCard, latency: dict[str, Any] | None) -> Line:
    """Return the line through a measured latency, which is of the card's default size, length and guidance."""
    if latency is None:
        return Line()
    try:
        step_s = {int(rows): float(seconds) for rows, seconds in latency["step_s"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return Line()
    passes = 2 if card.default_guidance > 1 else 1
    usable = {rows: seconds for rows, seconds in step_s.items() if rows > 0 and seconds > 0}
    return line_through(usable, passes * pixels_of(card))


def pixels_of(card: ModelCard) -> int:
    """Return the pixels of an image or clip of the card's default size and length."""
    return card.default_size.width * card.default_size.height * card.frames.default


def _decode_s(latency: dict[str, Any] | None) -> float:
    try:
        return max(float((latency or {}).get("decode_s", 0.0)), 0.0)
    except (ValueError, TypeError):
        return 0.0
