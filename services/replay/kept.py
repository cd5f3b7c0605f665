"""Store decisions beside the embeddings.

An interrupted replay resumes with them, and a changed replay decides only the policies whose inputs changed.
"""

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
    "services/replay/traces/clip_bytes.json",
    "services/text_extractor/*.py",
    "shared/index/nearest.py",
    "shared/models/*.py",
    "shared/models/bundled/large/state_codecs.json",
    "shared/domain/plan_rules.py",
    "shared/domain/cached.py",
    "shared/domain/masks.py",
    "shared/domain/parts.py",
    "shared/domain/plans.py",
    "shared/domain/requests.py",
    "shared/domain/types.py",
)
"""Sources that a decision may depend on; a change of any of them invalidates all stored decisions."""
LIBRARIES = ("numpy", "scikit-learn", "usearch")


@dataclass(frozen=True)
class Made:
    """Decisions of one policy at one budget, and the time that deciding took."""

    decisions: Decisions
    served: Served | None
    seconds: float
    processor_s: float


class Kept:
    """Files of decisions, one for each policy and budget, in the folder of an encoder's embeddings.

    A digest of all inputs names each file.
    """

    def __init__(self, folder: Path, load: Load) -> None:
        """Take the folder of the encoder that made the load's vectors; the folder's name identifies the vectors."""
        self._folder = folder
        self._basis = [_code(), folder.name, *_facts(load)]

    def path(self, policy: PolicySettings, room: int, *, entries: bool, fleet: Fleet | None) -> Path:
        """Return the file of these decisions, which may not exist yet. A policy's name and title do not matter."""
        asked = policy.model_dump(mode="json", exclude={"title", "source"})
        facts = [*self._basis, asked, room, entries, asdict(fleet) if fleet is not None else None]
        key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()
        return self._folder / f"decided-{key}.npz"


def read(path: Path) -> Made | None:
    """Read stored decisions; None if the file is missing or damaged."""
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
    """Write to a second file and rename it, so a killed process leaves no partial file."""
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
    """Yield the inputs of a load, without the vectors: prompts and encoder determine those."""
    trace, near = load.trace, load.neighbours
    yield from (trace.digest, len(trace), load.steps, near.indices.shape[1], near.floor)
    yield from map(_digest, (trace.users, trace.arrival_s, load.state_bytes, load.picture_bytes))
    yield None if load.group_of is None else _digest(load.group_of)
    yield [[level.k, level.min_similarity] for level in load.table.levels]
    if trace.steps is not None and load.card is not None:
        yield [_digest(trace.steps), load.card.sampler_id]
    for part in load.parts or ():
        yield [_digest(part.vectors), _digest(part.text_of)]
        yield [[level.k, level.min_similarity] for level in load.pair_table.levels]
    if load.pictures is not None:
        pictures = load.pictures
        yield [asdict(pictures.curve), pictures.ends, pictures.text_floor]
        yield [[level.k, level.min_similarity] for level in pictures.table.levels]


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=12).hexdigest()


@cache
def _code() -> list[str]:
    """Return the version of the deciding code: a digest of the sources, and the versions of the libraries."""
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
