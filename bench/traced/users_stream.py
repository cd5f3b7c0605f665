"""Requests of users who refine, re-roll and repeat each other's prompts, served in their order from an empty cache."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.traced.cached_serving import CachedServing, cached_serving
from bench.traced.painting import Paints, PlannedImage
from bench.traced.request_stream import Asked, request_of
from bench.traced.traced_systems import WINDOW
from services.embedder.encoder import Encoder
from shared.domain.types import Plan, PlanSource
from shared.models.scenes import WORDINGS, Scene, caption, edit, random_scene
from shared.runtime.settings import Settings

UNSEEN = (
    "an astronaut riding a horse",
    "a crocheted zeppelin over a volcano",
    "portrait of a medieval queen, oil on canvas",
    "a bowl of ramen with chopsticks",
    "cyberpunk samurai under neon signs",
)
"""Prompts whose words the bundled encoder was never shown."""
POPULAR = 5
"""Prompts that several users ask for."""
KINDS = ("popular", "edit", "reroll", "edit", "reroll", "unrelated", "edit", "another user's", "paraphrase", "unseen")
"""The requests of one user, in order. `popular` and `another user's` are prompts of other users, too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of a user, and its relation to the user's earlier ones."""

    number: int
    kind: str
    asked: Asked


@dataclass(frozen=True, slots=True)
class Given:
    """A planned request and its image."""

    plan: Plan
    png: bytes
    steps_run: int


def users_requests(users: int, seed: int) -> list[Wanted]:
    """Return len(KINDS) requests per user, all users' first requests before any second one."""
    rng = random.Random(f"users/{seed}")
    popular = [caption(random_scene(rng, natural_share=0.4), rng.randrange(WORDINGS)) for _ in range(POPULAR)]
    own = [_of_user(user, popular, random.Random(f"users/{seed}/{user}")) for user in range(users)]
    rows = [(kind, one[place]) for place, kind in enumerate(KINDS) for one in own]
    return [Wanted(number, kind, asked) for number, (kind, asked) in enumerate(rows)]


def _of_user(user: int, popular: Sequence[str], rng: random.Random) -> list[Asked]:
    scene, wording = random_scene(rng, natural_share=0.4), rng.randrange(WORDINGS)
    last, asked = caption(scene, wording), list[Asked]()
    for kind in KINDS:
        match kind:
            case "popular":
                text = popular[user % len(popular)]
            case "another user's":
                text = popular[(user + 1) % len(popular)]
            case "unseen":
                text = UNSEEN[user % len(UNSEEN)]
            case "reroll":
                text = last
            case _:
                scene, wording = _changed(scene, wording, kind, rng)
                text = last = caption(scene, wording)
        asked.append(Asked(f"user {user}", text, rng.getrandbits(31)))
    return asked


def _changed(scene: Scene, wording: int, kind: str, rng: random.Random) -> tuple[Scene, int]:
    if kind == "paraphrase":
        return scene, (wording + rng.randrange(1, WORDINGS)) % WORDINGS
    change = rng.choice(("light", "colour", "style", "position", "background")) if kind == "edit" else kind
    return edit(scene, change, rng), wording


async def serve_users(
    wanted: Sequence[Wanted], settings: Settings, steps: int | None, encoder: Encoder, painter: Paints, *, cache: bool
) -> dict[int, Given]:
    """Serve the requests in order from an empty cache, a batch of different users at a time.

    steps: T of every request; None: the plan chooses T. cache False: every image starts from noise.
    """
    with tempfile.TemporaryDirectory(prefix="afterimage-users-") as data:
        own = {"data_dir": Path(data), "catalog_url": "", "blobs_url": "", "listen": "127.0.0.1:0"}
        complete = Settings(**settings.model_copy(update={**own, "metrics_listen": ""}).model_dump())
        async with cached_serving(complete, encoder) as serving:
            given: dict[int, Given] = {}
            for batch in _batches(wanted):
                given |= await _served(serving, painter, batch, steps, cache=cache)
            return given


def _batches(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Yield consecutive requests, no two of one user: a user waits for the last image."""
    batch: list[Wanted] = []
    for one in wanted:
        if len(batch) == WINDOW or one.asked.user in {other.asked.user for other in batch}:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


async def _served(
    serving: CachedServing, painter: Paints, batch: Sequence[Wanted], steps: int | None, *, cache: bool
) -> dict[int, Given]:
    embedded = serving.encoder.texts([one.asked.prompt for one in batch])
    planned, vectors = dict[int, PlannedImage](), dict[int, bytes]()
    for one, text in zip(batch, embedded, strict=True):
        request = request_of(one.asked, serving, steps)
        plan = await serving.plan(request, text.vector, text.unknown_share) if cache else from_noise(serving)
        plan = painter.claimed(request, plan)
        planned[one.number] = PlannedImage(name_of(one.number), request, plan, await serving.state(plan))
        vectors[one.number] = text.vector
    drawn = painter.draw(list(planned.values()))
    for number, image in planned.items() if cache else ():
        await serving.keep(image.name, image.request, image.plan, vectors[number], drawn[image.name])
    return {
        number: Given(image.plan, drawn[image.name].png, drawn[image.name].steps_run)
        for number, image in planned.items()
    }


def name_of(number: int) -> str:
    """Return the id of a request's job and cache entry."""
    return f"image-{number:04d}"


def from_noise(serving: CachedServing) -> Plan:
    """Return the plan of a service without a cache."""
    card = serving.large
    return Plan(PlanSource.NOISE, card.name, weights_hash=card.weights_hash)


def roots_of(given: Mapping[int, Given]) -> dict[int, int]:
    """Return the number of the image from noise behind each image, which may be the image itself."""
    numbers = {name_of(number): number for number in given}
    return {number: numbers[one.plan.root] if one.plan.root else number for number, one in given.items()}
