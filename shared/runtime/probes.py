"""What a server reports about itself to `afterimage doctor`, which changes nothing there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class Probe:
    """The answers of one server. A server that does not answer raises UnavailableError instead."""

    server: str
    """Product and version."""
    round_trip_s: float
    """Seconds of one request on an open connection."""
    found: str = ""
    """What Afterimage keeps on the server."""
    warnings: tuple[str, ...] = ()
    wrong: str = ""
    """The reason why Afterimage cannot use this server, and what to do; empty: it can."""
    clock_ahead_s: float | None = None
    """The server's clock minus this machine's, in seconds; None: the server does not report a time."""


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (4, 0, 9) of `4.0.9-management`."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def ahead_by(date: str, at: float) -> float | None:
    """Return the seconds by which an HTTP Date header, in whole seconds, is ahead of the time `at`, in Unix seconds.

    0 within the header's second; None for an unreadable header.
    """
    try:
        begins = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    return begins - at if at < begins else min(begins + 1.0 - at, 0.0)
