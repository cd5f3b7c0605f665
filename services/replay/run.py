"""Turn a trace into every policy's decisions: embeddings, neighbour lists, then a pass for each policy and budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.replay.kept import Kept, Made, read, write
from services.replay.policy import PolicySettings
from services.replay.results.figures import Run
from services.replay.simulated.bound import (
    ROUNDS,
    TIGHTENING_ROUNDS,
    Alike,
    Bound,
    States,
    bound,
    options_of,
    tightened,
)
from services.replay.simulated.own_steps import OwnStates
from services.replay.simulated.simulation import Replay
from services.replay.simulated.timed import Fleet, TimedReplay
from services.replay.traces.embeddings import EmbeddingStore, embed
from services.replay.traces.encoders import Rows, TextEncoder
from services.replay.traces.load import Load
from services.replay.traces.neighbours import Neighbours, find_neighbours, load_neighbours
from services.replay.traces.parts import digest_of, groups_of, parts_of
from services.replay.traces.surrogate import BYTES_PER_PIXEL as PICTURE_BYTES_PER_PIXEL
from services.replay.traces.surrogate import Curve, picture_load
from services.replay.traces.trace import DEFAULT_SIZE, Trace
from services.retriever.selection import Ladder
from shared.domain.types import Size
from shared.models.card import ModelCard
from shared.models.k_table import KTable
from shared.runtime.progress import Bar

Ints = npt.NDArray[np.int64]
STEPS = 50
BYTES_PER_PIXEL = 2 * 4 / 64
"""Bytes of a latent for each pixel of the image: fp16, four channels, an eighth of each side (Stable Diffusion)."""


@dataclass(frozen=True)
class Options:
    """Inputs of a replay besides trace, encoder and policies."""

    table: KTable
    warmup: int
    width: int = 64
    """Neighbours listed per request."""
    honour_sizes: bool = False
    pictures: tuple[Curve, tuple[float, float]] | None = None
    """Surrogate of prompt–image cosines: its curve, and its lowest and highest cosine; None: no policy looks up
    images."""
    card: ModelCard | None = None
    """Model whose schedule decides which states fit, if each request has its own T."""
    parts: bool = False
    """Whether a policy also looks up objects and backgrounds."""
    pair_table: KTable | None = None
    """Table for pairs; None: `table`."""


PICTURE_FLOOR = 0.0
"""Prompt similarity below which no image is compared, far below the similarity that a latent needs."""


@dataclass
class Timings:
    """Seconds of each stage; results read from disk cost none."""

    embed_s: float = 0.0
    neighbours_s: float = 0.0
    bound_s: float = 0.0
    encoded: int = 0
    texts: int = 0
    neighbours_kept: bool = False


@dataclass
class Prepared:
    load: Load
    timings: Timings = field(default_factory=Timings)


def prepare(trace: Trace, encoder: TextEncoder, store_folder: Path, options: Options, bar: Bar) -> Prepared:
    """Return the inputs that all policies share; embeddings and neighbour lists stay on disk for the next run."""
    timings = Timings()
    vectors, text_of = embedded(trace.prompts, encoder, store_folder, bar, timings)
    sizes: dict[Size, int] = {}
    group_of = np.array([sizes.setdefault(size, len(sizes)) for size in trace.sizes], np.int64)
    groups = group_of if options.honour_sizes else None
    start = time.monotonic()
    folder = store_folder / encoder.hash
    floor = options.table.lowest_similarity
    kind = _lists_of(trace, "all" if groups is None else "sizes", options.width, floor)
    near, timings.neighbours_kept = _neighbours(vectors, text_of, groups, folder / kind, options.width, floor, bar)
    drawn = [size if options.honour_sizes else DEFAULT_SIZE for size in sizes]
    pictures = None
    if options.pictures is not None:  # an image can be resized to any size (MoDM §5.2), so sizes form no groups
        curve, ends = options.pictures
        kind = _lists_of(trace, "all", options.width, PICTURE_FLOOR)
        wide, _ = _neighbours(vectors, text_of, None, folder / kind, options.width, PICTURE_FLOOR, bar)
        pictures = picture_load(curve, ends, text_of, wide)
    # a cached clip has the bytes of all its frames
    each, whole = (
        trace.frames * np.array([size_of(size) for size in drawn])[group_of] for size_of in (state_bytes, picture_bytes)
    )
    load = Load(
        trace, vectors, text_of, near, options.table, each, whole, groups, STEPS, pictures,
        pairs_by=options.pair_table, card=options.card,
    )  # fmt: skip
    if options.parts:
        load = replace(load, parts=_parts(load, encoder, store_folder, options.width, bar, timings))
    timings.neighbours_s = time.monotonic() - start
    return Prepared(load, timings)


def _parts(
    load: Load, encoder: TextEncoder, store_folder: Path, width: int, bar: Bar, timings: Timings
) -> tuple[Load, Load]:
    """Return the load of objects and that of backgrounds; only requests whose prompts name both are neighbours."""
    bar("preparing: objects and backgrounds of the prompts", None)
    found = parts_of(load.trace.prompts)
    groups, floor = groups_of(found, load.group_of), load.pair_table.lowest_similarity

    def of(name: str, said: Sequence[str]) -> Load:
        vectors, text_of = embedded(said, encoder, store_folder, bar, timings)
        sizes = "all" if load.group_of is None else "sizes"
        lists = _lists_of(load.trace, f"{name}-{digest_of(said)}-{sizes}", width, floor)
        near, _ = _neighbours(vectors, text_of, groups, store_folder / encoder.hash / lists, width, floor, bar)
        return replace(load, vectors=vectors, text_of=text_of, neighbours=near, group_of=groups)

    return of("objects", [one.object for one in found]), of("backgrounds", [one.background for one in found])


def embedded(
    said: Sequence[str], encoder: TextEncoder, store_folder: Path, bar: Bar, timings: Timings
) -> tuple[Rows, Ints]:
    """Return one unit vector per text, shape (texts, dim), and each request's row in them. said: a text per request."""
    texts = list(dict.fromkeys(said))
    start = time.monotonic()
    store = EmbeddingStore(store_folder / encoder.hash, encoder.dim)
    try:
        missing = len(store.missing(texts))
        timings.encoded, timings.texts = timings.encoded + missing, timings.texts + len(texts)
        embed(store, encoder, texts, bar("embeddings", missing))
        vectors = store.rows(texts)
    finally:
        store.close()
    timings.embed_s += time.monotonic() - start
    place = {text: row for row, text in enumerate(texts)}
    return vectors, np.array([place[text] for text in said], np.int64)


def state_bytes(size: Size) -> int:
    """Return the bytes of an image's latent."""
    return round(size.width * size.height * BYTES_PER_PIXEL)


def picture_bytes(size: Size) -> int:
    """Return the bytes of a finished image (MoDM §3.1)."""
    return round(size.width * size.height * PICTURE_BYTES_PER_PIXEL)


def _lists_of(trace: Trace, kind: str, width: int, floor: float) -> str:
    """Return the name of the file of neighbour lists."""
    return f"neighbours-{trace.digest}-{len(trace)}-{kind}-{width}-{floor:.6f}.npz"


def _neighbours(
    vectors: Rows, text_of: Ints, groups: Ints | None, path: Path, width: int, floor: float, bar: Bar
) -> tuple[Neighbours, bool]:
    """Return the neighbour lists above `floor`, and whether they were read from disk."""
    if path.is_file():
        return load_neighbours(path), True
    advance = bar("neighbours", len(text_of))
    begun = path.with_name(f"{path.stem}-begun.npz")
    near = find_neighbours(vectors, text_of, groups, floor=floor, width=width, advance=advance, begun=begun)
    near.save(path)
    return near, False


@dataclass(frozen=True)
class Offered:
    """Budgets and mode in which every policy is replayed."""

    budgets: Sequence[int]
    """Budgets in bytes, or in entries."""
    entries: bool = False
    fleet: Fleet | None = None
    """Workers in virtual time; None: decisions alone, where each image is in the cache before the next request."""
    kept: Kept | None = None
    """Store of decisions on disk; None: decisions are not stored."""
    anew: bool = False
    """Decide every policy again and ignore stored decisions."""


def replay(
    load: Load,
    policies: Sequence[tuple[str, PolicySettings]],
    offered: Offered,
    bar: Bar,
    took_over: Callable[[str, int], None] = lambda policy, room: None,
) -> Iterator[Run]:
    """Yield a run for every policy at every budget; call `took_over` for decisions taken from an earlier run."""
    for room in offered.budgets:
        for name, policy in policies:
            path = None
            if offered.kept is not None:
                path = offered.kept.path(policy, room, entries=offered.entries, fleet=offered.fleet)
            made = read(path) if path is not None and not offered.anew else None
            if made is None:
                made = _decided(load, policy, room, offered, bar(name, len(load.trace)))
                if path is not None:
                    write(path, made)
            else:
                took_over(name, room)
            plain = policy.reuses == "latent" and policy.state_codec == "fp16" and not policy.pairs
            bounded = plain and not offered.entries and made.served is None
            what = made.decisions, made.seconds, made.processor_s, made.served
            yield Run(name, policy.title, policy.is_surrogate, bounded, room, *what, policy.predictor != "always")


def _decided(load: Load, policy: PolicySettings, room: int, offered: Offered, advance: Callable[[int], None]) -> Made:
    start, processor = time.monotonic(), time.process_time()
    one = Replay(load, policy, room, entries=offered.entries)
    decisions, served = (
        (one.run(advance), None)
        if offered.fleet is None
        else TimedReplay(one, load.trace, load.steps, offered.fleet).run(advance)
    )
    return Made(decisions, served, time.monotonic() - start, time.process_time() - processor)


def bounds(load: Load, budgets: Sequence[int], warmup: int, kept: Sequence[int], bar: Bar) -> list[Bound]:
    """Compute the offline bound at every budget; `kept` are the K of 50 after which some policy keeps a state."""
    bar("starts for the offline bound", None)
    options = options_of(load.neighbours, _states(load, kept), load.state_bytes, warmup)
    asked = int(load.trace.asked(load.steps)[warmup:].sum())
    advance = bar("offline bound", len(budgets) * (ROUNDS + TIGHTENING_ROUNDS))
    firsts = [bound(options, max_bytes, asked, advance=advance) for max_bytes in budgets]
    return [
        tightened(options, first, room, asked, advance=advance) for first, room in zip(firsts, budgets, strict=True)
    ]


def _states(load: Load, kept: Sequence[int]) -> States:
    """Return the states that policies may keep, for the offline bound.

    With one T for all requests, a state between two K of the table is worth no more than one at the upper K. Between
    requests of different T, a state may fit although the one at the upper K does not.
    """
    ladder, steps = Ladder(load.table, load.steps), load.trace.steps
    if steps is None or load.card is None:
        return Alike(ladder, ladder.steps)
    return OwnStates(steps, load.card, load.table, kept)
