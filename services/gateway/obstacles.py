"""Why no image of a model can be generated now: no worker is able, or a disk is full."""

from __future__ import annotations

import shutil

from services.gateway.roster import Roster
from shared.domain.errors import StorageFullError, UnavailableError
from shared.service import Context

WAIT_S = 30.0
"""Seconds after which a refused client comes back: an operator must act first."""
BROKER_FULL = "the message broker's disk or memory is full"


class NobodyAbleError(UnavailableError):
    """No worker can run the model, so the job would wait until an operator acts."""


class Obstacles:
    """Looks for them before a request is planned. Exact repeats need no worker, and room for a row alone."""

    def __init__(self, context: Context, roster: Roster) -> None:
        self._clock, self._bus, self._roster = context.clock, context.backends.bus, roster
        scheme, _, folder = context.settings.blobs_url.partition(":")
        self._folder = folder if scheme == "file" else ""
        self._min_free_bytes = context.settings.min_free_bytes

    def of(self, model: str) -> NobodyAbleError | StorageFullError | None:
        """Return the first obstacle; None when there is none."""
        if model in self._roster.unable(self._clock.monotonic()):
            why = "no worker could load it, or has it in its settings"
            said = f"model {model!r}: {why}; ask for another, or read the workers' logs for why"
            return NobodyAbleError(said, retry_after_s=WAIT_S)
        if self._folder and (full := full_disk(self._free_bytes, self._min_free_bytes)):
            return StorageFullError(full, retry_after_s=WAIT_S)
        if full := self._bus.full:
            return StorageFullError(f"{full}; free some there", retry_after_s=WAIT_S, outside=BROKER_FULL)
        return None

    @property
    def room_for_rows(self) -> bool:
        """Return whether exact repeats may take room: half of `min_free_bytes` stays for the jobs in hand."""
        return not self._folder or self._free_bytes >= self._min_free_bytes // 2

    @property
    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free


def full_disk(free_bytes: int, min_free_bytes: int) -> str:
    """Return what to say when the disk has no room to store another job's results; empty when it has."""
    if free_bytes >= min_free_bytes:
        return ""
    has, needs = free_bytes >> 20, min_free_bytes >> 20
    return f"the data directory's disk has {has} MiB left; min_free_bytes needs {needs} MiB; free some space"
