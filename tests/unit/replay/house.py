"""Small loads with known similarities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from services.replay.policy import PolicySettings
from services.replay.simulated.simulation import Replay
from services.replay.traces.load import Load
from services.replay.traces.neighbours import find_neighbours
from services.replay.traces.surrogate import Curve, picture_load
from services.replay.traces.trace import DEFAULT_SIZE, Trace
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, KTable

PICTURES = Curve((0.0, 0.8, 1.0), (0.0, 0.8, 1.0), (0.1, 0.1, 0.05))
STATE = 100
"""Bytes of every state."""
PICTURE = 3 * STATE
"""Bytes of every finished picture."""


def trace_of(prompts: list[str], users: list[int] | None = None) -> Trace:
    """One request a second."""
    return Trace(
        tuple(prompts),
        np.array(users or [0] * len(prompts)),
        np.arange(len(prompts), dtype=np.float64),
        (DEFAULT_SIZE,) * len(prompts),
    )


def topics(count: int, seed: int = 0, spread: float = 0.35, dim: int = 16) -> tuple[list[str], np.ndarray]:
    """Prompts about a few topics, some of them word for word again, and one unit row per different prompt."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((5, dim))
    points = centres[rng.integers(0, 5, count)] + spread * rng.standard_normal((count, dim))
    rows = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    said = [f"prompt {int(rng.integers(0, count)) if rng.random() < 0.2 else row}" for row in range(count)]
    texts = list(dict.fromkeys(said))
    return said, rows[: len(texts)]


def load_of(
    prompts: list[str], vectors: np.ndarray, *, width: int = 64, table: KTable = FIG_10, groups: int = 0
) -> Load:
    """`groups`: so many sizes in turn that do not fit each other; 0: all fit."""
    texts = {text: row for row, text in enumerate(dict.fromkeys(prompts))}
    text_of = np.array([texts[prompt] for prompt in prompts])
    group_of = np.arange(len(prompts)) % groups if groups else None
    near = find_neighbours(vectors, text_of, group_of, floor=table.lowest_similarity, width=width)
    pictures = picture_load(PICTURES, (0.1, 0.3), text_of, near)
    each, whole = np.full(len(prompts), STATE), np.full(len(prompts), PICTURE)
    return Load(trace_of(prompts), vectors, text_of, near, table, each, whole, group_of, 50, pictures)


def own_steps(load: Load, steps: np.ndarray) -> Load:
    """The same load, each request with a T of its own, on the schedule of a model that draws nothing."""
    return replace(load, trace=replace(load.trace, steps=steps), card=find_card("noop:"))


def policy(**fields: object) -> PolicySettings:
    return PolicySettings.model_validate({"title": "", "source": "", **fields})


class Decided(NamedTuple):
    """One request, once the cache has taken in what it left."""

    start_step: int
    similarity: float
    entry_id: str
    evicted: int


def decided(replay: Replay) -> Iterator[Decided]:
    """Run a replay, one request at a time."""
    times = replay._load.trace.arrival_s.tolist()
    for request, row in enumerate(replay.rows()):
        looked = replay.look(request, row, times[request])
        yield Decided(*looked[:3], replay.keep(request, looked, times[request]))
