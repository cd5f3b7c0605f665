"""What each service may do in the four servers: no more than its code does (docs/how-to/secure-access.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.bus.rabbitmq.queues import DEAD_LETTERS, facts_queue
from shared.catalog.roles import TABLES
from shared.domain import messages

_LANES = r"generate\.[^/]*"
_DEAD = re.escape(DEAD_LETTERS.name)
_OWN = r"amq\.gen-.*"
"""Names that RabbitMQ gives to the queues of one process."""
_CHANGES, _ALL = "INSERT, UPDATE", "INSERT, UPDATE, DELETE"


@dataclass(frozen=True)
class Rights:
    """Rights of one service."""

    queues: str
    """Pattern of the queues that it declares and reads."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Table → privileges beside SELECT."""
    publishes: tuple[type, ...] = ()
    """Events that it publishes. It may receive all."""
    reads: tuple[str, ...] = ()
    """Prefixes of the blobs that it reads."""
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    index: Literal["", "read", "write"] = ""


def _events_of(name: str) -> str:
    return rf"({_OWN}|{re.escape(facts_queue(name).name)}.*|{_DEAD}.*)"


_TASKS = rf"({_OWN}|{_LANES}|{_DEAD}.*)"
RIGHTS: dict[str, Rights | None] = {
    "embedder": None,
    "text_extractor": None,
    "gateway": Rights(
        tables={"jobs": _CHANGES, "idempotency_keys": _ALL},
        queues=_TASKS,
        publishes=(
            messages.JobQueued,
            messages.JobCancelled,
            messages.PreviewsRequested,
            messages.StateUsed,
            messages.StateLost,
        ),
        reads=("pictures/",),
        writes=("uploads/",),
        deletes=("uploads/",),
    ),
    "match_predictor": Rights(queues=_events_of("match_predictor")),
    "retriever": Rights(queues=_events_of("retriever"), index="read"),
    "gpu_worker": Rights(
        tables={"jobs": "UPDATE", "captured": "INSERT", "workers": _ALL},
        queues=_TASKS,
        publishes=(
            messages.Progress,
            messages.JobSucceeded,
            messages.JobFailed,
            messages.JobCancelled,
            messages.StateUsed,
            messages.StateLost,
            messages.WorkerReported,
        ),
        reads=("states/", "pictures/", "checkpoints/", "masks/", "uploads/"),
        writes=("states/", "pictures/", "checkpoints/"),
        deletes=("states/", "pictures/", "checkpoints/", "uploads/"),
    ),
    "segmenter": Rights(
        tables={"jobs": "UPDATE (unmasked)"},
        queues=_events_of("segmenter"),
        publishes=(messages.VideoSegmented,),
        reads=("pictures/", "masks/"),
        writes=("masks/",),
    ),
    "cache_maintainer": Rights(
        tables={name: _ALL for name in TABLES if name not in ("api_keys", "workers", "identity")},
        queues=rf"({_events_of('cache_maintainer')}|{_LANES})",
        publishes=(messages.EntriesCached, messages.EntriesEvicted, messages.JobCancelled, messages.DataErased),
        reads=("",),
        deletes=("",),
        index="write",
    ),
    "global_monitor": Rights(
        tables={"leases": _ALL},
        queues=_events_of("global_monitor"),
        publishes=(messages.WorkersAssigned,),
    ),
}
"""Rights by service; None: it uses no server."""
