"""A stream of requests: first prompts fill the cache, second prompts are measured. Plans come from the real planner."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.traced.cached_serving import CachedServing, Drawing, cached_serving
from bench.traced.painting import Paints, PlannedImage
from services.cli.profiles.pairs import ScenePair
from services.embedder.encoder import Encoder
from shared.domain.types import Plan, PlanSource, Relation, Request
from shared.models.scenes import WORDINGS, Scene, caption, edit
from shared.runtime.settings import Settings

SHARES = {Relation.EDIT: 0.50, Relation.TOPIC: 0.29, Relation.REROLL: 0.17, Relation.OTHER: 0.04}
"""Shares of the second prompts by their relation to the first one: those of `sd_trace_100k` without exact repeats."""
USERS_OF = 8
"""Second prompts per user."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the stream."""

    user: str
    prompt: str
    seed: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A first prompt, and the second prompt that is measured."""

    number: int
    relation: Relation
    """Relation of the second prompt to the first one; the plan may start from the first prompt of another turn."""
    kind: str
    """Kind of change of an edit; else the relation."""
    first: Asked
    second: Asked
    scene: Scene
    """Scene of the second prompt."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The images of one point as PNGs by the number of their turn, with their cost."""

    pictures: Mapping[int, bytes]
    steps_run: float
    """Mean per image."""
    processor_ms: float
    """Processor time of this process per image: denoising, decoding, PNG and all work of the cache."""
    firsts: Mapping[int, bytes] = field(default_factory=dict)
    """Images of the first prompts, at least of those that the second prompt re-rolls."""
    plans: Mapping[int, Plan] = field(default_factory=dict)
    """Plans of the second prompts; empty without a cache."""
    sources: Mapping[int, bytes] = field(default_factory=dict)
    """The image whose latent or pixels each reused image started from."""


def stream(pairs: Sequence[ScenePair]) -> list[Turn]:
    """Return one turn per pair, in the SHARES of real traffic; the second prompt is the pair's second prompt.

    Each user has USERS_OF turns. A pair depends only on its own number.
    """
    users = max(2, len(pairs) // USERS_OF)
    return [_turn(pair, place, users) for place, pair in enumerate(pairs)]


def _turn(pair: ScenePair, place: int, users: int) -> Turn:
    rng = random.Random(f"stream/{pair.number}")
    user, other = f"user {place % users}", f"user {(place + 1) % users}"
    relation = _relation(pair, rng)
    first = pair.before_text
    if relation is Relation.REROLL:
        first = pair.after_text
    elif relation is Relation.TOPIC and pair.kind != "unrelated":
        first = caption(edit(pair.after, "unrelated", rng), rng.randrange(WORDINGS))
    return Turn(
        number=pair.number,
        relation=relation,
        kind=pair.kind if relation is Relation.EDIT else relation.value,
        first=Asked(other if relation is Relation.OTHER else user, first, pair.before_seed),
        second=Asked(user, pair.after_text, pair.after_seed),
        scene=pair.after,
    )


def _relation(pair: ScenePair, rng: random.Random) -> Relation:
    """Draw the relation; one pair in ten is unrelated and counts towards the topics."""
    if pair.kind == "unrelated":
        return Relation.TOPIC
    unrelated = 0.1
    weights = [share - unrelated * (one is Relation.TOPIC) for one, share in SHARES.items()]
    return rng.choices(list(SHARES), weights)[0]


async def serve_stream(
    turns: Sequence[Turn], settings: Settings, steps: int | None, encoder: Encoder, painter: Paints
) -> Generated:
    """Fill an empty cache with the first prompts, then plan and generate the second prompts against it.

    steps: T of every request; None: the plan chooses T. The costs are those of the second prompts, whose entries are
    inserted as well. No second prompt starts from another second prompt.
    """
    with tempfile.TemporaryDirectory(prefix="afterimage-stream-") as data:
        own = {"data_dir": Path(data), "catalog_url": "", "blobs_url": "", "listen": "127.0.0.1:0"}
        complete = Settings(**settings.model_copy(update={**own, "metrics_listen": ""}).model_dump())
        async with cached_serving(complete, encoder) as serving:
            firsts = await _served(serving, painter, {f"first-{one.number}": one.first for one in turns}, steps)
            started = time.process_time()
            seconds = await _served(serving, painter, {f"second-{one.number}": one.second for one in turns}, steps)
            spent = time.process_time() - started
    drawn = {one.number: seconds[f"second-{one.number}"] for one in turns}
    plans = {number: plan for number, (plan, _) in drawn.items()}
    reused = {number: plan for number, plan in plans.items() if plan.source is not PlanSource.NOISE}
    return Generated(
        {number: drawing.png for number, (_, drawing) in drawn.items()},
        sum(drawing.steps_run for _, drawing in drawn.values()) / len(turns),
        1000 * spent / len(turns),
        {one.number: firsts[f"first-{one.number}"][1].png for one in turns},
        plans,
        {number: firsts[plan.entry_id][1].png for number, plan in reused.items()},
    )


async def _served(
    serving: CachedServing, painter: Paints, asked: Mapping[str, Asked], steps: int | None
) -> dict[str, tuple[Plan, Drawing]]:
    """Plan all requests, generate them together, and insert them; return plans and outcomes by name."""
    vectors = dict(zip(asked, serving.vectors([one.prompt for one in asked.values()]), strict=True))
    planned = []
    for name, one in asked.items():
        request = request_of(one, serving, steps)
        plan = painter.claimed(request, await serving.plan(request, vectors[name]))
        planned.append(PlannedImage(name, request, plan, await serving.state(plan)))
    drawn = painter.draw(planned)
    for image in planned:
        await serving.keep(image.name, image.request, image.plan, vectors[image.name], drawn[image.name])
    return {image.name: (image.plan, drawn[image.name]) for image in planned}


def request_of(asked: Asked, serving: CachedServing, steps: int | None) -> Request:
    """Return the request at the model's own size and guidance; steps None: the plan chooses T."""
    card = serving.large
    choice: dict[str, Any] = {"steps": card.default_steps, "steps_auto": True} if steps is None else {"steps": steps}
    return Request(
        prompt=asked.prompt,
        size=card.default_size,
        guidance=card.default_guidance,
        seed=asked.seed,
        seed_given=False,
        user=asked.user,
        **choice,
    )
