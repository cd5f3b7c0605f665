"""Policies: the bound of one question, which is all that differs between them (docs/adr/0013-starts.md)."""

from __future__ import annotations

from collections.abc import Sequence

from services.retriever.bounds import Bound, ImageTables, TableBound
from services.retriever.learned import LearnedBound
from services.retriever.question import Question
from services.retriever.refiners import own_steps
from services.retriever.tables import Known
from shared.models.k_table import EncoderId, KTable
from shared.runtime.settings import Settings


def bound_of(
    asked: Known,
    served: Sequence[Known],
    question: Question,
    encoder: EncoderId,
    latents: dict[int, KTable],
    settings: Settings,
) -> Bound:
    """Return the bound of the policy that `reuse_bound` names. latents: the tables in force for latents.

    nirvana starts from latents alone, flexcache from latents and pairs of latents, modm from images alone, auto from
    all; auto takes a learned bound where one was fitted, else the K tables.
    """
    request, policy = question.request, settings.reuse_bound
    models = {known.card.name: known for known in (*served, asked)}.values()
    images = {}
    for one in () if policy in ("nirvana", "flexcache") else models:
        steps = own_steps(one, asked, request)
        own = one.card.step_near if steps != request.steps else None
        images[one.card.name] = ImageTables(one.table_of(encoder, settings), steps, own)
    tables = TableBound(
        {} if policy == "modm" else latents,
        images,
        steps=request.steps,
        savings=request.savings,
        noise=asked.noise(),
        varied=asked.noise(varied=True),
        pairs=asked.pair_table(encoder, settings),
    )
    latent_bound = asked.learned_bound(encoder, settings)
    of_images = {name: one for known in models for name, one in known.learned_images(encoder, settings).items()}
    fitted = [*([latent_bound] if latent_bound else []), *of_images.values()]
    if not fitted:
        return tables
    return LearnedBound(latent_bound, of_images, tables=tables, alpha=fitted[0].alpha, savings=request.savings)
