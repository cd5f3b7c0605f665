"""The image whose unchanged patches a run holds (docs/adr/0023-regions.md), read at the claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from services.gpu_worker.engine.rows import FromCheckpoint, FromState, Region, Start
from services.gpu_worker.jobs.codecs import decode_png
from shared.domain.errors import AfterimageError
from shared.domain.types import Plan


async def with_region(
    plan: Plan, start: Start, runs_patches: bool, read: Callable[[str, str], Awaitable[bytes]]
) -> tuple[Plan, Start]:
    """Return plan and start with the image that the plan names. Where it cannot be read, or where the worker does not
    run patches, the run computes whole images, and the plan notes why. A run that held nothing when it was interrupted
    goes on so.

    read: returns the bytes under a key with this sha256.
    """
    if not plan.region_until or not isinstance(start, FromState | FromCheckpoint):
        return plan, start
    if isinstance(start, FromCheckpoint) and start.anew is None:
        return plan, start
    if not runs_patches:
        return _without(plan, "this worker runs whole images"), start
    source = plan.first_source
    try:
        pixels = await asyncio.to_thread(decode_png, await read(source.picture_key, source.picture_sha256))
    except AfterimageError as error:
        return _without(plan, error.outside), start
    return plan, replace(start, region=Region(pixels, plan.region_until))


def _without(plan: Plan, why: str) -> Plan:
    note = f"regions: {why}; all patches are computed"
    return replace(plan, region_until=0, degraded=(*plan.degraded, note))
