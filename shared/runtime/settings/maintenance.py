"""Maintenance: when the cache maintainer inserts entries, deletes blobs, and is replaced."""

from __future__ import annotations

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section


class Maintenance(Section):
    """The cache maintainer's periods and batches."""

    cache_batch_s: float = Field(0.05, ge=0, description="Entries are inserted in batches at most this far apart.")
    cache_batch_max: int = Field(64, ge=1, description="Entries of one batch, at most.")
    picture_batch_s: float = Field(
        0.5, ge=0, description="A new image is embedded so long after it came, with all that came meanwhile."
    )
    maintainer_lease_s: Seconds = Field(
        15.0, description="A cache maintainer that misses its lease for this long is replaced by one that stands by."
    )
    blob_grace_s: Seconds = Field(60.0, description="An evicted blob lives this much longer than its index entry.")
    quarantine_s: float = Field(
        3 * 24 * 3600.0, ge=0, description="A blob that nothing names is deleted when it has stayed so for this long."
    )
    collect_s: Seconds = Field(600.0, description="How often results expire and blobs that nothing names are sought.")
