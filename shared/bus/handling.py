"""Calls of event handlers, in order and with limited retries, and the treatment of other versions' messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from shared.bus import Handler
from shared.domain.messages import KINDS, decode
from shared.runtime.telemetry import METRICS, log

RETRY_AFTER_S = (0.05, 0.2, 0.8)
"""Delays before the retries of a failed handler, in seconds; after the last, the event is dropped."""

UNKNOWN_AGAIN_S = 5.0
"""Delay in seconds for a command that only another version can decode, so that a newer worker can take it."""
_unknown: set[str] = set()
"""Kinds already logged: one log line per kind is enough."""

_log = log("bus")


def of_another_version(kind: str, body: bytes, error: Exception) -> bool:
    """Return whether another version may be able to decode this command: it is a JSON object of a kind unknown here.

    Each such kind is logged once.
    """
    try:
        theirs = bool(kind) and kind not in KINDS and isinstance(json.loads(body), dict)
    except ValueError:
        theirs = False
    if theirs and kind not in _unknown:
        _unknown.add(kind)
        _log.warning("command_of_another_version", kind=kind, error=_first_line(error), again_in_s=UNKNOWN_AGAIN_S)
    return theirs


async def hand_over_fact(handler: Handler, kind: str, body: bytes, queue: str) -> None:
    """Call the handler, with retries if it fails; ignore an event that only another version can decode."""
    try:
        fact = decode(kind, body)
    except (KeyError, ValueError) as error:
        if kind not in _unknown:
            _unknown.add(kind)
            _log.warning("event_ignored", kind=kind, queue=queue, error=_first_line(error))
        return
    await hand_over(lambda: handler(fact), kind, queue)


def _first_line(error: Exception) -> str:
    return repr(error).splitlines()[0][:200]


async def hand_over(tell: Callable[[], Awaitable[None]], kind: str, queue: str) -> None:
    """Call `tell` until it succeeds, with limited retries; `kind` and `queue` are for the log."""
    for wait_s in (*RETRY_AFTER_S, None):
        start = time.monotonic()
        try:
            await tell()
            _observe(kind, "handled", start)
            return
        except Exception as error:
            _observe(kind, "failed" if wait_s else "dropped", start)
            if wait_s is None:
                _log.error("event_dropped", kind=kind, queue=queue, error=repr(error), exc_info=error)
                return
            _log.warning("event_retried", kind=kind, queue=queue, error=repr(error), again_in_s=wait_s)
            await asyncio.sleep(wait_s)


def _observe(kind: str, outcome: str, start: float) -> None:
    METRICS.event_seconds.labels(kind, outcome).observe(time.monotonic() - start)
