"""Finds blobs that nothing names any more: what a crash left behind between two writes (design §8)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

from shared.backends import Backends
from shared.blobs import BlobInfo
from shared.clock import Clock
from shared.errors import NotFoundError

PREFIXES = ("states/", "pictures/", "checkpoints/")
"""Keys are `<kind>/<job id>-<attempt>…`."""
AT_ONCE = 500


async def collect_orphans(
    backends: Backends, clock: Clock, grace_s: float, check: Callable[[], None] = lambda: None
) -> int:
    """Deletes blobs older than the grace that no row names and whose job is not being drawn; how many went.

    `check` raises when this process may not delete any more.
    """
    deleted = 0
    for prefix in PREFIXES:
        async for keys in _old(backends.blobs.list(prefix), clock.now() - grace_s):
            named = await backends.catalog.entries.referenced(keys)
            idle = [key for key in keys if key not in named and not await _in_work(backends, key)]
            # a job that finished between the two questions names its blobs now
            named = await backends.catalog.entries.referenced(idle)
            orphans = [key for key in idle if key not in named]
            check()
            await backends.blobs.delete(orphans)
            deleted += len(orphans)
    return deleted


async def _old(blobs: AsyncIterator[BlobInfo], before: float) -> AsyncIterator[list[str]]:
    """Keys last written before that time, some at once."""
    keys: list[str] = []
    async for blob in blobs:
        if blob.modified_at < before:
            keys.append(blob.key)
        if len(keys) == AT_ONCE:
            yield keys
            keys = []
    if keys:
        yield keys


async def _in_work(backends: Backends, key: str) -> bool:
    """A worker stores blobs first and names them on the row when it is done."""
    job_id = re.split("[/-]", key.partition("/")[2])[0]
    try:
        return not (await backends.catalog.jobs.get(job_id)).state.final
    except NotFoundError:
        return False
    except ValueError:  # a row that this version cannot read: nothing of it is thrown away
        return True
