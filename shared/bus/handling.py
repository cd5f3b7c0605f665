"""How a subscriber is told a fact: in order, again when it fails, and not for ever; and messages of another version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from shared.bus import Handler
from shared.domain.messages import KINDS, decode
from shared.runtime.telemetry import log

RETRY_AFTER_S = (0.05, 0.2, 0.8)
"""How long a fact waits before a failed handler sees it again, by try; then it is dropped."""

UNKNOWN_AGAIN_S = 5.0
"""A command that only another version can decode waits this long in its lane, so that a newer worker can take it."""
_unknown: set[str] = set()
"""Kinds that were reported: one log line for each is enough."""

_log = log("bus")


def of_another_version(kind: str, body: bytes, error: Exception) -> bool:
    """Whether a command that this version cannot decode may be one that another version can: a JSON object of a kind
    that is unknown here. Its kind is logged once."""
    try:
        theirs = bool(kind) and kind not in KINDS and isinstance(json.loads(body), dict)
    except ValueError:
        theirs = False
    if theirs and kind not in _unknown:
        _unknown.add(kind)
        _log.warning("command_of_another_version", kind=kind, error=_first_line(error), again_in_s=UNKNOWN_AGAIN_S)
    return theirs


async def hand_over_fact(handler: Handler, kind: str, body: bytes, queue: str) -> None:
    """Calls the handler, a few times where it fails; an event that only another version can decode is ignored."""
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
    """Calls `tell` until it does not raise, a few times; `kind` and `queue` are for the log."""
    for wait_s in (*RETRY_AFTER_S, None):
        try:
            await tell()
            return
        except Exception as error:
            if wait_s is None:
                _log.error("fact_dropped", kind=kind, queue=queue, error=repr(error), exc_info=error)
                return
            _log.warning("fact_retried", kind=kind, queue=queue, error=repr(error), again_in_s=wait_s)
            await asyncio.sleep(wait_s)
