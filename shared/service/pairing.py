"""Check that a catalog and a blob store belong together: each stores the other's id (docs/adr/0011)."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass
from typing import Literal

from shared.blobs import Blobs
from shared.blobs.address import address_of
from shared.catalog import Catalog, place_of
from shared.catalog.custody import Ids
from shared.domain.errors import BlobCorruptError, BlobMissingError
from shared.runtime.settings import Settings

SEAL_KEY = "identity/store.json"
KINDS = ("states/", "pictures/", "checkpoints/", "masks/", "uploads/")
"""Blob keys are `<kind>/<job id>-<attempt>…` or `<kind>/<job id>/<attempt>…`."""
SAMPLE = 1_000
"""Number of blobs that are looked up in the catalog when the store has no id."""
LISTED = 50_000
"""Number of blobs of each kind among which the sample is chosen."""
ENOUGH = 0.9
"""Share of the sample that the catalog must know before such a store becomes its own."""


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses of catalog and store for messages, without passwords."""

    catalog: str
    store: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The blob that names the catalog of a store."""

    store: str
    catalog: str
    catalog_at: str = ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Result of comparing a catalog and a store.

    `paired`: the two belong together. `unadopted`: the store has no id, and the catalog knows too few of its blobs.
    `mismatch`: one of the two belongs to another.
    """

    state: Literal["paired", "unadopted", "mismatch"]
    said: str = ""
    """The reason, and what to do; empty when paired."""


PAIRED = Pairing("paired")


def job_of(key: str) -> str:
    """Return the id of the job that a blob belongs to."""
    return re.split("[/-]", key.partition("/")[2])[0]


def places_of(settings: Settings) -> Places:
    url = settings.blobs_url
    if url.startswith("file:"):
        return Places(place_of(settings.catalog_url), url.removeprefix("file:").removeprefix("//"))
    at = address_of(url)
    return Places(place_of(settings.catalog_url), f"bucket {at.bucket} at {at.endpoint}")


def judge(ids: Ids, seal: Seal, at: Places) -> Pairing:
    """Compare the ids that catalog and store have of themselves and of each other."""
    if (seal.catalog, seal.store) == (ids.catalog, ids.store):
        return PAIRED
    owner = f"catalog {seal.catalog}{f' ({seal.catalog_at})' if seal.catalog_at else ''}"
    return _mismatch(ids, f"the blob store at {at.store} has id {seal.store} and belongs to {owner}", at)


def judge_unsealed(ids: Ids, known: int, sampled: int, at: Places) -> Pairing:
    """Decide by the number of sampled blobs that the catalog knows; an empty store pairs with a catalog without one."""
    if sampled and known >= ENOUGH * sampled:
        return PAIRED
    if not sampled and not ids.paired_with:
        return PAIRED
    share = f"the catalog knows {known / sampled:.0%} of {sampled} sampled blobs" if sampled else "it is empty"
    found = f"{share} ({ENOUGH:.0%} are needed)"
    if ids.paired_with:
        return _mismatch(ids, f"the blob store at {at.store} has no id, and {found if sampled else share}", at)
    return Pairing(
        "unadopted",
        f"the blob store at {at.store} has no id, and it is not clear that it belongs to the catalog at {at.catalog}: "
        f"{found}. It is used, and nothing in it is collected. If the two belong together, run "
        "`afterimage cache adopt --yes`; if not, point AFTERIMAGE_CATALOG_URL or AFTERIMAGE_BLOBS_URL elsewhere",
    )


def _mismatch(ids: Ids, store: str, at: Places) -> Pairing:
    its = f"belongs to store {ids.store} ({ids.paired_with})" if ids.paired_with else "was paired with no store yet"
    return Pairing(
        "mismatch",
        f"catalog_url and blobs_url do not belong together: {store}, but the catalog at {at.catalog} has id "
        f"{ids.catalog} and {its}. Point AFTERIMAGE_CATALOG_URL or AFTERIMAGE_BLOBS_URL at the right one. If this "
        "catalog and this store are to belong together from now on, run `afterimage cache adopt --yes`",
    )


async def read_seal(blobs: Blobs) -> Seal | None:
    """Return the store's id blob; None when it is missing or unreadable."""
    try:
        found = json.loads(await blobs.get(SEAL_KEY))
        return Seal(str(found["store"]), str(found["catalog"]), str(found.get("catalog_at", "")))
    except (BlobMissingError, BlobCorruptError, ValueError, KeyError, TypeError):
        return None


async def compare(catalog: Catalog, blobs: Blobs, at: Places) -> Pairing:
    """Compare catalog and store; pair them when neither belongs to another yet (see `judge_unsealed`)."""
    ids, seal = await catalog.custody.ids(), await read_seal(blobs)
    if seal is None:
        keys = await _sample(blobs)
        verdict = judge_unsealed(ids, await _known(catalog, keys), len(keys), at)
        if verdict is not PAIRED:
            return verdict
        await _write_seal(blobs, ids, at)
        seal = await read_seal(blobs)  # another catalog may have paired with the store at the same moment
        if seal is None:
            return Pairing(
                "mismatch", f"the blob store at {at.store} does not keep the id written to it; check its permissions"
            )
    verdict = judge(ids, seal, at)
    if verdict is PAIRED and not ids.paired_with:
        await catalog.custody.pair(ids.store, at.store)
    return verdict


async def mismatch(catalog: Catalog, blobs: Blobs, at: Places) -> str:
    """Return the reason why the two do not belong together; empty when the store has no id, or the right one."""
    seal = await read_seal(blobs)
    return judge(await catalog.custody.ids(), seal, at).said if seal is not None else ""


async def adopt(catalog: Catalog, blobs: Blobs, at: Places) -> None:
    """Pair this store with this catalog, whatever each was paired with before."""
    ids, seal = await catalog.custody.ids(), await read_seal(blobs)
    store = seal.store if seal is not None else ids.store
    await _write_seal(blobs, Ids(ids.catalog, store, at.store), at)
    await catalog.custody.pair(store, at.store)


async def _write_seal(blobs: Blobs, ids: Ids, at: Places) -> None:
    seal = Seal(ids.store, ids.catalog, at.catalog)
    await blobs.put(SEAL_KEY, json.dumps(asdict(seal), indent=1).encode())


async def _sample(blobs: Blobs) -> list[str]:
    """Return random keys, the same number of each kind if each kind has enough."""
    drawn = [await _drawn(blobs, kind) for kind in KINDS]
    drawn.sort(key=len)
    keys: list[str] = []
    for number, some in enumerate(drawn):
        keys += some[: (SAMPLE - len(keys)) // (len(drawn) - number)]
    return keys


async def _drawn(blobs: Blobs, kind: str) -> list[str]:
    """Return at most SAMPLE random keys of this kind, among the first LISTED, in random order."""
    chance, drawn, number = random.Random(0), list[str](), 0
    async for blob in blobs.list(kind):
        number += 1
        if len(drawn) < SAMPLE:
            drawn.append(blob.key)
        elif (at := chance.randrange(number)) < SAMPLE:
            drawn[at] = blob.key
        if number == LISTED:
            break
    chance.shuffle(drawn)
    return drawn


async def _known(catalog: Catalog, keys: list[str]) -> int:
    """Count the blobs that a row names or whose job the catalog knows; blobs of lost attempts count as well."""
    named = await catalog.entries.referenced(keys)
    rest = [key for key in keys if key not in named]
    jobs = await catalog.custody.known(sorted({job_of(key) for key in rest}))
    return len(named) + sum(job_of(key) in jobs for key in rest)
