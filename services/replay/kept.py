"""Decisions that are made already, kept beside the embeddings: a replay that was broken off goes on, and a changed one
runs again only what is decided otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from services.replay.policy import PolicySettings
from services.replay.simulated.decisions import Decisions
from services.replay.simulated.timed import Fleet, Served
from services.replay.traces.load import Load

ROOT = Path(__file__).parents[2]
DECIDING = (
    "services/cache_maintainer/**/*.py",
    "services/retriever/*.py",
    "services/match_predictor/sketch.py",
    "services/match_predictor/svm.py",
    "services/gpu_worker/models/model_assignment.py",
    "services/gpu_worker/engine/scheduler.py",
    "services/replay/**/*.py",
    "shared/index/nearest.py",
    "shared/models/*.py",
    "shared/domain/plan_rules.py",
    "shared/domain/types.py",
)
"""What a decision may depend on: with other sources everything runs again."""
LIBRARIES = ("numpy", "scikit-learn", "usearch")


@dataclass(frozen=True)
class Made:
    """What one policy decided at one budget, and what that took when it was run."""

    decisions: Decisions
    served: Served | None
    seconds: float
    processor_s: float


class Kept:
    """One file for each policy and budget in the folder of an encoder's embeddings, named by all it depends on."""

    def __init__(self, folder: Path, load: Load) -> None:
        """`folder`: of the encoder whose vectors the load has; it stands for them."""
        self._folder = folder
        self._basis = [_code(), folder.name, *_facts(load)]

    def path(self, policy: PolicySettings, room: int, *, entries: bool, fleet: Fleet | None) -> Path:
        """Where these decisions are, once they are made. How a policy is called does not matter."""
        asked = policy.model_dump(mode="json", exclude={"title", "source"})
        facts = [*self._basis, asked, room, entries, asdict(fleet) if fleet is not None else None]
        key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()
        return self._folder / f"decided-{key}.npz"


def read(path: Path) -> Made | None:
    """None where there is nothing, or nothing whole."""
    try:
        with path.open("rb") as file, np.load(file) as kept:
            arrays = dict(kept)
        joined = {field.name: arrays[f"served.{field.name}"] for field in fields(Served) if "served.ended_at" in arrays}
        return Made(
            Decisions(**{field.name: _value(arrays[field.name]) for field in fields(Decisions)}),
            Served(**{name: _value(value) for name, value in joined.items()}) if joined else None,
            float(arrays["seconds"]),
            float(arrays["processor_s"]),
        )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def write(path: Path, made: Made) -> None:
    """Written aside and moved: a kill leaves no half file."""
    values = {name: getattr(made.decisions, name) for name in _names(Decisions)}
    if made.served is not None:
        values |= {f"served.{name}": getattr(made.served, name) for name in _names(Served)}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part.npz")
    np.savez_compressed(aside, seconds=made.seconds, processor_s=made.processor_s, **values)
    aside.replace(path)


def _names(of: type[Decisions] | type[Served]) -> list[str]:
    return [field.name for field in fields(of)]


def _value(array: npt.NDArray[Any]) -> Any:
    return array if array.ndim else array.item()


def _facts(load: Load) -> Iterator[Any]:
    """What is offered, without the vectors: prompts and encoder say those."""
    trace, near = load.trace, load.neighbours
    yield from (trace.digest, len(trace), load.steps, near.indices.shape[1], near.floor)
    yield from map(_digest, (trace.users, trace.arrival_s, load.state_bytes, load.picture_bytes))
    yield None if load.group_of is None else _digest(load.group_of)
    yield [[level.k, level.min_similarity] for level in load.table.levels]
    if trace.steps is not None and load.card is not None:
        yield [_digest(trace.steps), load.card.sampler_id]
    if load.pictures is not None:
        pictures = load.pictures
        yield [asdict(pictures.curve), pictures.ends, pictures.text_floor]
        yield [[level.k, level.min_similarity] for level in pictures.table.levels]


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=12).hexdigest()


@cache
def _code() -> list[str]:
    """The version of every policy: a digest of the sources, and of libraries what they say of themselves."""
    total = hashlib.blake2b(digest_size=12)
    for pattern in DECIDING:
        for path in sorted(ROOT.glob(pattern)):
            total.update(path.read_bytes())
    return [total.hexdigest(), *map(_version, LIBRARIES)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
