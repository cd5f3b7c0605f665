"""Maintenance: when the cache maintainer inserts entries, deletes blobs, and is replaced."""

from __future__ import annotations

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section, Share


class Maintenance(Section):
    """The cache maintainer's periods and batches."""

    cache_batch_s: float = Field(
        0.05,
        ge=0,
        description="Seconds during which new entries are collected into one insert. A larger value makes fewer "
        "inserts and makes entries usable later.",
    )
    cache_batch_max: int = Field(64, ge=1, description="Entries of one insert, at most.")
    picture_batch_s: float = Field(
        0.5,
        ge=0,
        description="Seconds between the arrival of an image and its embedding. Images that arrive in between share "
        "one batch.",
    )
    check_share: Share = Field(
        0.01,
        description="Share of hits that are generated again from noise while no job waits, and compared. Where too "
        "many fail, reuse stops. A larger value finds bad states sooner and uses more idle capacity; 0 checks nothing.",
    )
    maintainer_lease_s: Seconds = Field(
        15.0, description="Seconds without a lease renewal after which a standby replaces the cache maintainer."
    )
    blob_grace_s: Seconds = Field(
        60.0,
        description="Seconds between the eviction of a blob's index entry and the blob's deletion, because a worker "
        "may still read the blob.",
    )
    quarantine_s: float = Field(
        3 * 24 * 3600.0,
        ge=0,
        description="Seconds that a blob which no row names is kept before its deletion (3 days). A larger value "
        "leaves more time to restore a newer backup of the catalog.",
    )
    collect_s: Seconds = Field(
        600.0, description="Seconds between two passes that expire results and search the store for unnamed blobs."
    )
