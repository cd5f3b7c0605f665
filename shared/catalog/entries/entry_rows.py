"""Conversion of cache entries and their states to rows and back; entries that this version cannot read are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.catalog.jobs.job_rows import mask_of
from shared.catalog.tables import entries
from shared.domain.parts import Parts
from shared.domain.types import CompatKey, Entry, Scope, Size, State, from_json, owner_key, to_json
from shared.runtime.unreadable import unreadable

IS_READABLE = entries.c.scope.in_([scope.value for scope in Scope])
"""SQL condition: `entry_of` can read the row."""


def state_of(row: Any) -> State:
    """Return a row of `states` as a State. The table's columns are State's fields, in the same order."""
    return State(*row)


def compat_of(row: Any) -> CompatKey:
    return CompatKey(row.weights_hash, row.sampler, row.dtype, Size(row.width, row.height), row.steps, row.frames)


def entry_of(row: Any, live: Sequence[State]) -> Entry:
    """Return the row as an Entry; raise UnreadableRowError for a row that this version cannot read."""
    try:
        scope = Scope(row.scope)
    except ValueError as error:
        raise unreadable(entries.name, row.id, error, row.tenant) from error
    return Entry(
        id=row.id,
        job_id=row.job_id or "",
        prompt=row.prompt,
        tenant=row.tenant,
        user=row.user,
        scope=scope,
        model=row.model,
        compat=compat_of(row),
        exact_key=row.exact_key,
        picture_key=row.picture_key,
        picture_sha256=row.picture_sha256,
        encoder_hash=row.encoder_hash,
        created_at=row.created_at,
        states=tuple(live),
        root=row.root,
        seed=int(row.seed) if row.seed else None,
        background_root=row.background_root,
        parts=_parts_of(row),
        mask=mask_of(row),
    )


def _parts_of(row: Any) -> Parts | None:
    """Return the parts of the entry's prompt; None where the row names none that this version can read."""
    try:
        return from_json(Parts, row.parts) if row.parts else None
    except ValueError:
        return None


def row_of(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "job_id": entry.job_id or None,
        "prompt": entry.prompt,
        "tenant": entry.tenant,
        "user": entry.user,
        "scope": entry.scope.value,
        "owner": owner_key(entry.scope, entry.tenant, entry.user),
        "model": entry.model,
        "weights_hash": entry.compat.weights_hash,
        "sampler": entry.compat.sampler,
        "dtype": entry.compat.dtype,
        "width": entry.compat.size.width,
        "height": entry.compat.size.height,
        "steps": entry.compat.steps,
        "frames": entry.compat.frames,
        "exact_key": entry.exact_key,
        "picture_key": entry.picture_key,
        "picture_sha256": entry.picture_sha256,
        "encoder_hash": entry.encoder_hash,
        "root": "" if entry.root == entry.id else entry.root,
        "seed": "" if entry.seed is None else str(entry.seed),
        "background_root": entry.background_root,
        "parts": to_json(entry.parts).decode() if entry.parts is not None else "",
        "mask_key": entry.mask.key if entry.mask is not None else None,
        "mask_sha256": entry.mask.sha256 if entry.mask is not None else "",
        "mask_bytes": entry.mask.bytes if entry.mask is not None else 0,
    }
