"""The models that may continue from an image for one question, each with its own steps, guidance and pace (MoDM
§5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from services.retriever.cost import pace_of
from services.retriever.question import Question, Refiner, choices_of
from services.retriever.tables import Known
from shared.domain.types import Request
from shared.models.k_table import EncoderId


def refiners_of(
    asked: Known, served: Sequence[Known], question: Question, encoder: EncoderId, most_steps: int | None = None
) -> tuple[Refiner, ...]:
    """Return the model that the request names, else every served model that can generate such a request."""
    request = question.request
    drawers = [one.card for one in (*served, asked)]
    able = [
        one
        for one in ([asked] if request.names_a_model else served)
        if one.may_refine(encoder, drawers) and one.card.draws(request.size, own_steps(one, asked, request))
    ]
    return tuple(
        Refiner(
            one.card.name,
            one.card.weights_hash,
            question.steps
            if one.card.name == asked.card.name
            else choices_of(one.card, request, most_steps) or (own_steps(one, asked, request),),
            pace_of(one.latencies, asked.latencies),
            None if one.card.name == asked.card.name else one.card.guidance_for(request.guidance, asked.card),
            small=one.card.role == "small",
            noise=partial(one.noise_like, asked.card),
            prompted_from=one.card.prompted_from,
        )
        for one in able
    )


def own_steps(one: Known, asked: Known, request: Request) -> int:
    """Return T of the model `one` in a request for the model `asked`."""
    return request.steps if one.card.name == asked.card.name else one.card.steps_for(request.steps, asked.card)
