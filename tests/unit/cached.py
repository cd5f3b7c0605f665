"""Finished jobs and cached entries for the tests of the services around the cache, written as a worker writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.embedder.encoder import encoder_folder, encoder_hash
from shared.catalog import open_catalog
from shared.domain.exact_repeats import exact_key
from shared.domain.ids import new_id
from shared.domain.types import (
    CacheMode,
    Captured,
    Job,
    JobState,
    Plan,
    PlanSource,
    Request,
    Result,
    Scope,
    Size,
    Vector,
    vector_bytes,
)
from shared.models.card_lookup import find_card
from shared.models.k_table import KTable, Level, profile_kind, profile_of, table_to_json
from shared.runtime.settings import Settings
from shared.service.backends import Backends

MODEL = "noop:?name=noop"
ENCODER = "e1"
SIZE = Size(64, 64)
DIM = 32


def unit(seed: int) -> Vector:
    row = np.random.default_rng(seed).standard_normal(DIM)
    return (row / np.linalg.norm(row)).astype(np.float32)


def near(row: Vector, cosine: float) -> Vector:
    """A unit vector with exactly this cosine to `row`."""
    other = np.roll(row, 1)
    other = other - (other @ row) * row
    made = cosine * row + (1 - cosine**2) ** 0.5 * other / np.linalg.norm(other)
    return made.astype(np.float32)


def request(prompt: str = "a red cube", **changes: object) -> Request:
    base = Request(prompt=prompt, size=SIZE, steps=50, guidance=1.0, seed=7, user="ada", scope=Scope.TENANT)
    return replace(base, **changes)  # type: ignore[arg-type]


async def measured(settings: Settings) -> None:
    """The large model may start from its own pictures."""
    card = find_card(settings.large)
    name, hashed = card.name, card.weights_hash
    table = KTable(
        (Level(5, 0.5),),
        model=name,
        weights_hash=hashed,
        encoder_hash=encoder_hash(encoder_folder(settings.encoder)),
        images_from=name,
        images_weights_hash=hashed,
    )
    kind = profile_kind(settings.image_k_table_alpha, images=True)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    catalog = await open_catalog(settings.catalog_url)
    await catalog.profiles.put(kind, profile_of(table), hashed, table_to_json(table))
    await catalog.close()


async def finished_job(
    backends: Backends,
    asked: Request,
    vector: Vector | None,
    *,
    steps: Sequence[int] = (5, 10, 15, 20, 25),
    size: int = 100,
    source: PlanSource = PlanSource.NOISE,
    picture: bytes = b"",
    model: str = "noop",
    encoder: str = ENCODER,
    plan: Plan | None = None,
    asked_of: str = "",
    parts: bytes = b"",
    base: int = 0,
) -> Job:
    """A succeeded job with its blobs and row, as a worker leaves it; `vector` None: the embedder was away. `asked_of`:
    the model that was asked for where `model` generated in its place. `parts`: embedding of both parts of the
    prompt. `base`: the step that the others need."""
    compat, asked_compat = (
        find_card(name if ":" in name else f"noop:?name={name}").compat_for(asked)
        for name in (model, asked_of or model)
    )
    job = Job(
        id=new_id(),
        request=asked,
        plan=plan or Plan(source, model),
        state=JobState.QUEUED,
        lane="generate.noop",
        vector=vector_bytes(vector) if vector is not None else b"",
        object_vector=parts,
        background_vector=parts,
        encoder_hash=encoder,
        exact_key=exact_key(asked, asked_compat),
    )
    await backends.catalog.jobs.accept(job, key_lifetime_s=60)
    await backends.catalog.jobs.claim(job.id, "w", 60)
    captured = []
    for step in steps:
        key = f"states/{job.id}/1/{step}.safetensors"
        sha256 = await backends.blobs.put(key, bytes([step]) * size)
        codec = f"keyframes@{base}" if base not in (0, step) else "keyframes" if base else "fp16"
        captured.append(Captured(step, key, size, codec, sha256))
    picture_key = f"pictures/{job.id}/1.png"
    data = picture or b"picture of " + job.id.encode()
    picture_sha256 = await backends.blobs.put(picture_key, data)
    result = Result(
        picture_key, picture_sha256, len(data), model, compat.weights_hash, 50, captured=tuple(captured), compat=compat
    )
    await backends.catalog.jobs.finish(job.id, 1, result)
    return await backends.catalog.jobs.get(job.id)


__all__ = ["DIM", "ENCODER", "MODEL", "SIZE", "CacheMode", "Scope", "finished_job", "near", "request", "unit"]
