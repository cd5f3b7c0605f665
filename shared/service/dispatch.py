"""Dispatch of a job: write its row, send its task, then record on the row that the broker has the task.

Source: docs/architecture.md, Write order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shared.bus import Bus
from shared.domain.errors import AfterimageError
from shared.domain.messages import GenerateImage
from shared.domain.types import Job

Confirm = Callable[[Sequence[str]], Awaitable[None]]
"""Function that records on the rows of these jobs that the broker has their tasks, at once or later in a batch."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Result of a dispatch."""

    written: bool = True
    """False: another attempt or a cancellation has changed the row, so no task was sent."""
    sent: bool = True
    error: AfterimageError | None = None
    """Why the task was not sent or not confirmed. The sweeper sends it again."""

    @property
    def trouble(self) -> str:
        """Text of the log line about the error."""
        return f"task not {'confirmed' if self.sent else 'sent'}; the sweeper sends it"


async def dispatch(
    bus: Bus, job: Job, confirm: Confirm, *, write: Awaitable[bool] | None = None, previews: bool = False
) -> Dispatched:
    """Write the job's row, send its task to the lane on the row, and confirm.

    job: as its row says after `write`. write: False when the row is no longer the caller's; None: the row is written.
    Raises what `write` raises. A process that stops in between leaves an unconfirmed row, and the sweeper sends its
    task; of two tasks the second loses the claim.
    """
    if write is not None and not await write:
        return Dispatched(written=False)
    task = GenerateImage.of(job, previews=previews)
    sent = False
    try:
        await bus.send(job.lane, task, priority=job.request.priority)
        sent = True
        await confirm([job.id])
    except AfterimageError as error:
        return Dispatched(sent=sent, error=error)
    return Dispatched()
