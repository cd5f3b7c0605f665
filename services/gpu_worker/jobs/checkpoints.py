"""The keys of crash checkpoints. A job's row may name fewer than exist, or a deleted one."""

from __future__ import annotations

import re

from shared.blobs import Blobs

_KEY = re.compile(r"checkpoints/[^/]+-(?P<attempt>\d+)-(?P<step>\d+)\.safetensors")


def key_of(job_id: str, attempt: int, step: int) -> str:
    return f"checkpoints/{job_id}-{attempt}-{step}.safetensors"


async def all_of(blobs: Blobs, job_id: str) -> list[str]:
    """Return the keys of all checkpoints of this job, of any attempt, in no order."""
    return [blob.key async for blob in blobs.list(f"checkpoints/{job_id}-")]


async def furthest_first(blobs: Blobs, job_id: str) -> list[str]:
    """Return the job's checkpoint keys, most steps first; among equals the newest attempt first."""
    found = [(match, key) for key in await all_of(blobs, job_id) if (match := _KEY.fullmatch(key))]
    ranked = sorted(((int(match["step"]), int(match["attempt"]), key) for match, key in found), reverse=True)
    return [key for _, _, key in ranked]


async def forget(blobs: Blobs, job_id: str) -> None:
    """Delete all checkpoints of a job that has ended."""
    if keys := await all_of(blobs, job_id):
        await blobs.delete(keys)
