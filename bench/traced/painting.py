"""Generation of planned requests on the engine, without queues; plans are resolved as a claiming worker does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from bench.traced.cached_serving import Drawing
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import encode_png, encode_state
from services.gpu_worker.jobs.starts import start_of, task_of
from shared.domain.messages import refine_lane
from shared.domain.plan_rules import choose_model, lane_for
from shared.domain.types import Plan, Request
from shared.models.card_lookup import served_cards
from shared.models.state_codecs import PLAIN, codec_of
from shared.runtime.settings import Settings


@dataclass(frozen=True)
class PlannedImage:
    """A request and its plan, with the state or image that the plan starts from."""

    name: str
    request: Request
    plan: Plan
    blob: bytes | None = None


class Paints(Protocol):
    """Common interface of Painter and Blank."""

    def claimed(self, request: Request, plan: Plan) -> Plan: ...
    def draw(self, planned: Sequence[PlannedImage]) -> dict[str, Drawing]: ...


class Painter:
    """Generation in throughput mode with a small worker beside the large one.

    The small model refines image hits that name no model (MoDM §5.3.2). Every other request runs on its plan's
    model."""

    def __init__(self, settings: Settings, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._cards, self._settings = served_cards(settings), settings
        self._families = {name: load_family(card) for name, card in self._cards.items()}

    def claimed(self, request: Request, plan: Plan) -> Plan:
        return claimed_by_small(self._families, request, plan)

    def draw(self, planned: Sequence[PlannedImage]) -> dict[str, Drawing]:
        """Return the outcomes by name; raise the engine's error for a request that failed."""
        engine, codec = Engine(self._families, max_rows=self._settings.max_rows), self._settings.state_codec
        for one in planned:
            engine.submit(task_of(one.name, one.request, one.plan, start_of(one.plan, one.blob, one.request.size)))
        model = {one.name: one.plan.model for one in planned}
        steps = {one.name: one.plan.run_steps(one.request.steps) for one in planned}
        states: dict[str, dict[int, tuple[str, bytes]]] = {one.name: {} for one in planned}
        drawn = {}
        while not engine.idle:
            for event in engine.step():
                match event:
                    case LatentCaptured(id=name, step=step, latent=latent, noises=noises):
                        own = codec_of(codec, self._cards[model[name]], step, steps[name])
                        states[name][step] = own, encode_state(latent, own, noises)
                    case Finished(id=name, pixels=pixels, steps_run=steps_run):
                        drawn[name] = Drawing(model[name], encode_png(pixels), states[name], steps_run)
                    case Left(error=error):
                        raise error
        return drawn


class Blank:
    """No generation, for systems that search by prompts alone: their latents do not depend on images."""

    def claimed(self, request: Request, plan: Plan) -> Plan:
        return plan

    def draw(self, planned: Sequence[PlannedImage]) -> dict[str, Drawing]:
        return {one.name: self._drawing(one) for one in planned}

    def _drawing(self, one: PlannedImage) -> Drawing:
        states = {step: (PLAIN, bytes([step])) for step in one.plan.capture_steps}
        return Drawing(one.plan.model, b"blank", states, one.plan.run_steps(one.request.steps) - one.plan.start_step)


def claimed_by_small(families: Mapping[str, Family], request: Request, plan: Plan) -> Plan:
    """Return the plan as the claiming worker runs it: small models consume the lane `refine`."""
    _, *smalls = families
    refines = lane_for(request, plan, families) == refine_lane(request.modality)
    plan = choose_model(plan, families, smalls if refines else ())
    return replace(plan, weights_hash=families[plan.model].card.weights_hash)
