"""One decision code: what is served for real, one at a time, and what is replayed are the same decisions.

A tiny random model serves the first requests of the shipped trace; where its images would start nothing else, a model
without a denoiser does. Each entry is indexed before the next request. Budgets are so small that states or images leave
all the time. Then a replay decides the same requests.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.cache_maintainer.service import CacheMaintainerService
from services.embedder.encoder import encoder_hash
from services.gpu_worker.jobs.codecs import encode_state
from services.match_predictor.service import MatchPredictorService
from services.replay.policy import PolicySettings, read_policy
from services.replay.simulated.simulation import Replay
from services.replay.traces.encoders import Rows, open_encoder
from services.replay.traces.load import Load
from services.replay.traces.neighbours import Neighbours, find_neighbours
from services.replay.traces.surrogate import PictureLoad, read_curve
from services.replay.traces.trace import Trace, read_trace
from services.retriever.service import RetrieverService
from shared.domain.messages import EntriesCached, Message
from shared.domain.types import Vector
from shared.index.nearest import cosines
from shared.models.card import ModelCard
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, KTable, Level, named_table, table_file, table_to_json
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from tests import tiny as tiny_models
from tests.flows.conftest import Make
from tests.flows.house import House, house

TRACE = Path(__file__).parents[3] / "load" / "traces" / "sessions_1200.jsonl"
REQUESTS = 120
MIXED = (10, 20, 25)
"""T of requests that each take their own: K of 25 are 2, 5, 7, 10 and 12, of which 5 and 10 fit a run of 10, too."""
PICTURES = KTable(tuple(Level(k, cosine) for k, cosine in ((10, -0.2), (20, -0.05), (30, 0.05))), alpha=0.95)
"""Text against picture, as far apart as the tiny random encoder tells them."""


class Heard:
    """Which entries a service has heard of, and done what it does about them."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self._ids: set[str] = set()
        self._more = asyncio.Event()
        self._handle, service.handle = service.handle, self.handle

    async def handle(self, message: Message) -> None:
        await self._handle(message)
        if isinstance(message, EntriesCached):
            self._ids.update(message.entry_ids)
            self._more.set()

    async def of(self, entry_id: str) -> None:
        while entry_id not in self._ids:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 30.0)


@dataclass
class Served:
    """What was decided for each request, and what was left in the end."""

    ids: list[str] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """What the clock showed: the arrivals, but for what adding them up rounds away."""
    start_step: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    similarity: list[float] = field(default_factory=list)
    predicted: list[bool] = field(default_factory=list)
    picture_bytes: list[int] = field(default_factory=list)
    images: list[Vector] = field(default_factory=list)
    """Embeddings of the pictures, where they start others."""
    held: dict[str, list[int]] = field(default_factory=dict)


async def serve(trace: Trace, settings: Settings, steps: int) -> Served:
    """Every request at its time; the next one once everybody knows what this one left."""
    clock, made = ManualClock(), Served()
    heard = [Heard(RetrieverService()), Heard(MatchPredictorService())]
    kinds = [one.service.name for one in heard]
    async with house(settings, without=kinds, plus=[one.service for one in heard], clock=clock) as it:
        maintainer = next(one for one in it.process.services if isinstance(one, CacheMaintainerService))
        asked = trace.asked(steps).tolist()
        for request, (prompt, size) in enumerate(zip(trace.prompts, trace.sizes, strict=True)):
            clock.advance(trace.arrival_s[request] - trace.arrival_s[max(request - 1, 0)])
            made.at.append(clock.now())
            user = f"u{trace.users[request]}"
            picture = await it.client.generate(
                prompt, width=size.width, height=size.height, steps=asked[request], user=user
            )
            assert not picture.plan.degraded
            for one in heard:
                await one.of(picture.job.id)
            made.ids.append(picture.job.id)
            made.start_step.append(picture.plan.start_step)
            made.source.append(made.ids.index(picture.plan.entry_id) if picture.plan.start_step else -1)
            made.similarity.append(picture.plan.similarity)
            made.predicted.append(picture.plan.predicted_hit is not False)
            made.picture_bytes.append(len(picture.png))
            if settings.image_tier != "off":
                made.images.append(await embedded(it, maintainer, picture.job.id))
        held = maintainer.cache.held
        states = held.pictures.shelf if held.pictures is not None else held.latents
        for state in sorted(states, key=lambda state: (state.entry_id, state.step)):
            made.held.setdefault(f"{made.ids.index(state.entry_id):09d}", []).append(state.step)
    return made


async def embedded(it: House, maintainer: CacheMaintainerService, entry_id: str) -> Vector:
    """The picture's embedding, once the index has it."""
    async with asyncio.timeout(30.0):
        while True:
            (item,) = await it.backends.catalog.entries.items_of([entry_id]) or [None]
            if item is not None and "image" in item.vectors:
                async with maintainer.cache._lock:  # whoever wrote that down has brought it into the index, too
                    return np.asarray(item.vectors["image"], np.float32)
            await asyncio.sleep(0.002)


def load_of(trace: Trace, encoder: str, model: ModelCard, served: Served, steps: int, *, width: int) -> Load:
    """The same requests as a replay is offered them, when they came; pictures are as similar as they were."""
    trace = replace(trace, arrival_s=np.array(served.at))
    texts = list(dict.fromkeys(trace.prompts))
    opened = open_encoder(encoder)
    vectors = np.concatenate([opened.texts([text]) for text in texts])  # one by one, as when serving
    place = {prompt: row for row, prompt in enumerate(texts)}
    text_of = np.array([place[prompt] for prompt in trace.prompts])
    codes = {size: code for code, size in enumerate(dict.fromkeys(trace.sizes))}
    group_of = np.array([codes[size] for size in trace.sizes])
    near = find_neighbours(vectors, text_of, group_of, floor=FIG_10.lowest_similarity, width=width)
    latents = (
        np.zeros((model.latent_channels, size.height // model.vae_scale, size.width // model.vae_scale), np.float32)
        for size in trace.sizes
    )
    state_bytes = np.array([len(encode_state(latent, "fp16")) for latent in latents])
    pictures = pictures_of(vectors, text_of, np.stack(served.images)) if served.images else None
    return Load(
        trace, vectors, text_of, near, FIG_10, state_bytes, np.array(served.picture_bytes), group_of, steps, pictures,
        model,
    )  # fmt: skip


def pictures_of(vectors: Rows, text_of: np.ndarray, images: Rows) -> PictureLoad:
    """Every request's earlier pictures by their own cosines, which need no surrogate."""
    count = len(text_of)
    indices, similarities = np.full((count, count), -1, np.int32), np.full((count, count), -1, np.float32)
    for request in range(1, count):
        scores = cosines(images[:request], vectors[text_of[request]])
        order = np.lexsort((-np.arange(request), -scores))
        order = order[scores[order] > PICTURES.lowest_similarity]
        indices[request, : len(order)], similarities[request, : len(order)] = order, scores[order]
    lists = Neighbours(indices, similarities, np.zeros(count, np.bool_), PICTURES.lowest_similarity)
    return PictureLoad(read_curve()[0], (0.0, 1.0), text_of, lists, 0.0, PICTURES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with tables of its own: Fig. 10 for latents, PICTURES for finished pictures."""
    made = tiny_models.build(tmp_path_factory.mktemp("models"), channels=(16,))
    weights = find_card(str(made / "large")).weights_hash
    of_pictures = replace(
        PICTURES, model="large", weights_hash=weights, encoder_hash=encoder_hash(made / "clip"), images_from="large",
        images_weights_hash=weights,
    )  # fmt: skip
    of_latents = replace(named_table(FIG_10), model="large", weights_hash=weights, alpha=0.95)
    for table in (of_latents, of_pictures):
        (made / "large" / table_file(table)).write_text(json.dumps(table_to_json(table)))
    return made


@pytest.mark.parametrize(
    ("name", "model", "steps", "room", "candidates"),
    [
        ("nirvana", "noop:", 10, 72_000, 1),
        ("flexcache", "tiny", 5, 72_000, 1),
        ("afterimage", "noop:", 10, 144_000, 8),
        ("afterimage", "noop:", MIXED, 144_000, 8),
        ("lru-hits", "noop:", MIXED, 144_000, 3),
        ("modm", "tiny", (5, 10), 60_000, 1),
    ],
)
async def test_serving_and_replaying_decide_alike(
    make: Make, folder: Path, name: str, model: str, steps: int | tuple[int, ...], room: int, candidates: int
) -> None:
    """K of T = 10 are 1 to 5, of T = 5 of latents 1 and 2, and 3 of pictures. Of several T each request takes one."""
    policy = read_policy(name).model_copy(update={"candidates": candidates})
    refines = policy.reuses == "refine"
    trace, own = read_trace(TRACE)[:REQUESTS], isinstance(steps, tuple)
    if isinstance(steps, tuple):
        trace, steps = replace(trace, steps=np.random.default_rng(0).choice(steps, REQUESTS)), 50
    large = str(folder / "large") if model == "tiny" else model
    encoder = str(folder / "clip") if refines else "bundled:clip"
    served = await serve(trace, make(large=large, encoder=encoder, **as_served(policy, room)), steps)
    # few neighbours: some requests must fall back on the exact search. What `afterimage` hears of a lookup is all its
    # candidates, so its lists must hold them
    width = 64 if policy.evict == "afterimage" else max(candidates, 2)
    replay = Replay(load_of(trace, encoder, find_card(large), served, steps, width=width), policy, room)
    made = replay.run()
    assert made.evicted.sum() > 90
    assert replay.searched > 0 or width == 64 or refines or policy.predictor == "svm"
    assert (made.predicted.sum() < REQUESTS - 30) == (policy.predictor == "svm")
    assert len({*served.start_step}) >= 3
    assert made.start_step.tolist() == served.start_step
    assert made.source.tolist() == served.source
    assert made.predicted.tolist() == served.predicted
    hits = made.start_step > 0
    assert made.similarity[hits] == pytest.approx(np.array(served.similarity)[hits], abs=1e-6)
    assert started_from_another_t(trace, served) > 5 if own else trace.steps is None
    left = {entry: [0] if refines else sorted(steps) for entry, steps in replay.held().items()}
    assert left == served.held


def started_from_another_t(trace: Trace, served: Served) -> int:
    assert trace.steps is not None
    hits = np.flatnonzero(np.array(served.source) >= 0)
    return int((trace.steps[hits] != trace.steps[np.array(served.source)[hits]]).sum())


def as_served(policy: PolicySettings, room: int) -> dict[str, Any]:
    """The settings of serving that are this policy."""
    common = {
        "insert_on_hit": policy.insert_on_hit,
        "candidates": policy.candidates,
        "further_candidates": policy.further_candidates,
        "cache_batch_s": 0.0,
        "reuse_rules": "paper",
    }
    if policy.reuses == "refine":
        of_pictures = {"image_tier": "all", "picture_policy": policy.evict, "picture_max_bytes": room}
        return {**common, **of_pictures, "capture_steps": (), "picture_batch_s": 0.0, "predictor": "always"}
    return {
        **common,
        "image_tier": "off",
        "eviction_policy": policy.evict,
        "capture_steps": policy.capture_steps,
        "lcbfu_initial_uses": policy.initial_uses,
        "cache_max_bytes": room,
        "predictor": policy.predictor,
        "sample_predicted_misses": 0.0,
    }
