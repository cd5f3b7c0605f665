"""The loaded models as `Describe` answers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median

from protos import gpu_worker_pb2 as pb
from services.gpu_worker.families import Family


def described(
    families: Mapping[str, Family], step_s: Mapping[tuple[str, int], Collection[float]]
) -> list[pb.LoadedModel]:
    """step_s: seconds of the last steps by (model, rows)."""
    return [_described(family, step_s) for family in families.values()]


def _described(family: Family, step_s: Mapping[tuple[str, int], Collection[float]]) -> pb.LoadedModel:
    card = family.card
    return pb.LoadedModel(
        model=card.name,
        weights_hash=card.weights_hash,
        sampler=card.sampler_id,
        dtype=card.dtype,
        bytes=family.memory_bytes,
        step_s={rows: median(seconds) for (model, rows), seconds in step_s.items() if model == card.name},
    )
