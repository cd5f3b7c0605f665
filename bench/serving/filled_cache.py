"""A data directory with any number of cached entries: the rows, blobs and vectors that serving writes, in bulk.

One request is served first. Every other entry is built from that request's job by `admit`, the function that the cache
maintainer calls, and goes through the catalog's and the blob store's ports. `differences` compares the result with the
entry that serving wrote. The entries' jobs are left out, as after `results_keep_s`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from load.sessions import make_trace
from services.cache_maintainer.admission import admit
from services.cli.embedded import embedded
from services.embedder.encoder import Encoder, encoder_folder
from shared.blobs import Blobs
from shared.catalog import Catalog
from shared.client import AsyncClient
from shared.domain.exact_repeats import exact_key
from shared.domain.ids import new_id
from shared.domain.types import Captured, Entry, Job, vector_bytes
from shared.models.devices import single_threaded
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

Rows = npt.NDArray[np.float32]
TOGETHER = 250
"""Entries that are written at the same time; the catalog commits up to 64 of them together."""
USER_ENTRIES = 20
"""Entries of one user."""
PROJECTIONS = ("text_projection.weight", "visual_projection.weight")


def widened_encoder(name: str, dim: int, folder: Path) -> Path:
    """Write the encoder `name` with `dim` output dimensions to a folder; return the folder.

    Its outputs are the encoder's own, multiplied by orthonormal columns: every cosine stays as it is. Return the
    encoder's own folder where its outputs have `dim` dimensions already.
    """
    source = encoder_folder(name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    own = int(config["projection_dim"])
    if dim == own:
        return source
    if dim < own:
        raise ValueError(f"--dim must be at least {own}, the outputs of encoder {name!r} (got {dim})")
    shutil.copytree(source, folder)
    columns = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, own)))[0]
    weights = load_file(folder / "model.safetensors")
    for name_ in PROJECTIONS:
        weights[name_] = (columns @ weights[name_].astype(np.float64)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    for part in (config, config["text_config"], config["vision_config"]):
        part["projection_dim"] = dim
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def embedded_prompts(folder: Path, clusters: int) -> tuple[list[str], Rows]:
    """Return different prompts of a session trace, and their embeddings, shape (clusters, dim)."""
    found: dict[str, None] = {}
    for seed in range(1, 100):
        found |= dict.fromkeys(row.prompt for row in make_trace(2 * clusters, seed))
        if len(found) >= clusters:
            break
    prompts = list(found)[:clusters]
    single_threaded()
    encoder = Encoder(folder)
    texts = [one.vector for at in range(0, len(prompts), 250) for one in encoder.texts(prompts[at : at + 250])]
    return prompts, np.frombuffer(b"".join(texts), "<f4").reshape(len(prompts), -1)


def around(centres: Rows, count: int, seed: int) -> tuple[Rows, npt.NDArray[np.intp]]:
    """Return unit rows near the centres (cosine about .9), and each row's centre.

    Rows of one centre have a cosine of about .8, as in bench.weaviate_lookup."""
    rng = np.random.default_rng(seed)
    of = rng.integers(len(centres), size=count)
    rows = centres[of]
    for at in range(0, count, 10_000):
        part = rows[at : at + 10_000]
        part += np.float32(0.5 / part.shape[1] ** 0.5) * rng.standard_normal(part.shape, np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows, of


async def serve_one(settings: Settings, prompt: str) -> str:
    """Serve one request in the data directory; return its id. The drain at the end inserts its entry."""
    async with embedded(settings) as process, AsyncClient(process.address) as client:
        return (await client.generate(prompt, user="user 0")).job.id


async def blobs_of_job(blobs: Blobs, job: Job) -> dict[str, bytes]:
    """Return the contents of the job's image and states by key."""
    assert job.result is not None
    keys = [job.result.picture_key, *(state.key for state in job.result.captured)]
    return {key: await blobs.get(key) for key in keys}


def another(job: Job, number: int, prompt: str, vector: bytes) -> Job:
    """Return a job like this one, of another user, prompt and id."""
    assert job.result is not None
    assert job.result.compat is not None
    id_ = new_id()
    request = dataclasses.replace(
        job.request, prompt=prompt, user=f"user {number // USER_ENTRIES}", seed=job.request.seed + number + 1
    )
    captured = tuple(_moved(state, job.id, id_) for state in job.result.captured)
    result = dataclasses.replace(job.result, picture_key=job.result.picture_key.replace(job.id, id_), captured=captured)
    return dataclasses.replace(
        job, id=id_, request=request, result=result, vector=vector, exact_key=exact_key(request, job.result.compat)
    )


def _moved(state: Captured, old: str, new: str) -> Captured:
    return dataclasses.replace(state, key=state.key.replace(old, new))


async def put_blobs(blobs: Blobs, job: Job, like: Job, contents: dict[str, bytes]) -> None:
    """Store the blobs of a job made by `another` from `like`."""
    await asyncio.gather(
        *(blobs.put(key.replace(like.id, job.id), data, durable=False) for key, data in contents.items())
    )


def entry_of(job: Job) -> Entry:
    """Return the entry that the cache maintainer makes of this job."""
    entry = admit(job, picture=True)
    assert entry is not None
    return entry


async def fill(catalog: Catalog, blobs: Blobs, like: Job, rows: Rows, prompts: Sequence[str]) -> list[str]:
    """Insert an entry for each row and prompt; return the entries' ids in the rows' order."""
    contents, ids = await blobs_of_job(blobs, like), list[str]()
    remaining = Remaining("entries written", len(rows))
    for at in range(0, len(rows), TOGETHER):
        jobs = [
            another(like, number, prompts[number], vector_bytes(rows[number]))
            for number in range(at, min(at + TOGETHER, len(rows)))
        ]
        # the blobs exist before a row names them
        await asyncio.gather(*(put_blobs(blobs, job, like, contents) for job in jobs))
        await asyncio.gather(*(catalog.entries.add(entry_of(job), {"whole": job.vector}) for job in jobs))
        ids += [job.id for job in jobs]
        remaining.advance(len(jobs))
    return ids


async def differences(catalog: Catalog, blobs: Blobs, served: Job, filled_id: str) -> list[str]:
    """Name what a filled entry has other than the served one, beyond id, prompt, user, seed, vector and times."""
    ours, theirs = await catalog.entries.get(filled_id), await catalog.entries.get(served.id)
    found = [
        f"{name}: {one!r} instead of {other!r}"
        for name, one, other in _compared(_plain(ours), _plain(theirs))
        if name not in ("prompt", "user", "seed", "exact_key")
    ]
    (item,), (other_item,) = await catalog.entries.items_of([filled_id]), await catalog.entries.items_of([served.id])
    if (item.compat, item.encoder_hash) != (other_item.compat, other_item.encoder_hash):
        found.append("the index's filters")
    if {name: one.shape for name, one in item.vectors.items()} != {n: o.shape for n, o in other_item.vectors.items()}:
        found.append("the vectors")
    keys = [ours.picture_key, *(state.key for state in ours.states)]
    for key in keys:
        if await blobs.get(key) != await blobs.get(key.replace(filled_id, served.id)):
            found.append(f"blob {key}")
    return found


def _plain(entry: Entry) -> dict[str, Any]:
    """Return the entry without its own id and times."""
    text = json.dumps(dataclasses.asdict(entry), default=str).replace(entry.id, "ID")
    plain: dict[str, Any] = json.loads(text)
    del plain["created_at"]
    for state in plain["states"]:
        del state["created_at"], state["used_at"]
    return plain


def _compared(ours: dict[str, Any], theirs: dict[str, Any]) -> Sequence[tuple[str, Any, Any]]:
    return [
        (name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)
    ]
