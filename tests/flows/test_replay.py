"""One decision code: what is served for real, one at a time, and what is replayed are the same decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.gpu_worker.codecs import encode_state
from services.replay.encoders import open_encoder
from services.replay.load import Load
from services.replay.neighbours import find_neighbours
from services.replay.policy import PolicySettings
from services.replay.simulation import Decisions, Replay
from services.replay.trace import Trace, read_trace
from shared.clock import ManualClock
from shared.models.card import find_card
from shared.models.k_table import FIG_10
from tests.flows.conftest import Make
from tests.flows.house import House, house

TRACE = Path(__file__).parents[2] / "load" / "traces" / "sessions_1200.jsonl"
REQUESTS = 70
ROOM_BYTES = 240_000
"""About a hundred states: less than a third of what these requests make."""


async def served(trace: Trace, it: House, clock: ManualClock) -> tuple[list[int], list[int]]:
    """(K, source request or −1) of each at its time, every entry indexed before the next request."""
    ids: dict[str, int] = {}
    steps, sources = [], []
    for request, (prompt, size) in enumerate(zip(trace.prompts, trace.sizes, strict=True)):
        clock.advance(trace.arrival_s[request] - trace.arrival_s[max(request - 1, 0)])
        picture = await it.generate(
            prompt, width=size.width, height=size.height, steps=50, user=f"u{trace.users[request]}"
        )
        assert not picture.plan.degraded
        ids[picture.job.id] = request
        steps.append(picture.plan.start_step)
        sources.append(ids[picture.plan.entry_id] if picture.plan.start_step else -1)
    return steps, sources


def replayed(trace: Trace, encoder: str, policy: PolicySettings) -> Decisions:
    vectors = open_encoder(encoder).texts(trace.prompts)
    place = {prompt: row for row, prompt in enumerate(trace.prompts)}
    text_of = np.array([place[prompt] for prompt in trace.prompts])
    codes = {size: code for code, size in enumerate(dict.fromkeys(trace.sizes))}
    group_of = np.array([codes[size] for size in trace.sizes])
    card = find_card("noop:")
    latents = [
        np.zeros((card.latent_channels, size.height // card.vae_scale, size.width // card.vae_scale), np.float32)
        for size in trace.sizes
    ]
    state_bytes = np.array([len(encode_state(latent, "fp16")) for latent in latents])
    # few neighbours: some requests must fall back on the exact search. What `afterimage` hears of a lookup is all its
    # candidates, so its lists must hold them
    width = 64 if policy.evict == "afterimage" else 6
    near = find_neighbours(vectors, text_of, group_of, floor=FIG_10.lowest_similarity, width=width)
    load = Load(trace, vectors, text_of, near, FIG_10, state_bytes, state_bytes, group_of)
    return Replay(load, policy, ROOM_BYTES).run()


@pytest.mark.parametrize(
    ("eviction", "insert_on_hit", "candidates"),
    [
        ("lcbfu", True, 8),
        ("fifo", False, 1),
        ("lru", True, 3),
        ("lrbu", True, 1),
        ("afterimage", True, 8),
    ],
)
async def test_serving_and_replaying_decide_alike(
    make: Make, eviction: str, insert_on_hit: bool, candidates: int
) -> None:
    trace = read_trace(TRACE)[:REQUESTS]
    settings = make(
        large="noop:",
        encoder="bundled:clip",
        predictor="always",
        eviction_policy=eviction,
        insert_on_hit=insert_on_hit,
        candidates=candidates,
        cache_max_bytes=ROOM_BYTES,
        cache_batch_s=0.0,
    )
    clock = ManualClock()
    async with house(settings, clock=clock) as it:
        steps, sources = await served(trace, it, clock)
    policy = PolicySettings(
        title="as served", source="", evict=eviction, insert_on_hit=insert_on_hit, candidates=candidates
    )  # fmt: skip
    made = replayed(trace, "bundled:clip", policy)
    assert made.evicted.sum() > 50
    assert len({*steps}) > 3
    assert made.start_step.tolist() == steps
    assert made.source.tolist() == sources
