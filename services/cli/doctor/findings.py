"""Findings of checks, checks with a time limit, and findings without secrets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from shared.domain.errors import AfterimageError
from shared.runtime.settings import Settings


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, the verdict, the measured fact, and what to do."""

    check: str
    verdict: Verdict
    fact: str
    advice: str = ""


def ok(check: str, fact: str) -> Finding:
    return Finding(check, Verdict.OK, fact)


def warning(check: str, fact: str, advice: str = "") -> Finding:
    return Finding(check, Verdict.WARNING, fact, advice)


def wrong(check: str, fact: str, advice: str = "") -> Finding:
    """Return a finding that prevents the service from working; errors of Afterimage have the advice in the fact."""
    return Finding(check, Verdict.WRONG, fact, advice)


@dataclass(frozen=True, slots=True)
class Check:
    """A named question that changes nothing, and the seconds that its answer may take."""

    name: str
    limit_s: float
    ask: Callable[[], Iterable[Finding]]


def findings(check: Check) -> Iterator[Finding]:
    """Yield the findings of a check; an error is one too, and a check that cannot run says why.

    The check runs on a daemon thread, which a call that hangs in the kernel cannot keep from ending.
    """
    answered: queue.SimpleQueue[list[Finding]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answered.put(_asked(check)), name=check.name, daemon=True).start()
    try:
        yield from answered.get(timeout=check.limit_s)
    except queue.Empty:
        yield warning(check.name, f"not checked: no answer within {check.limit_s:g} s")


def _asked(check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check.ask())
    except AfterimageError as error:
        found.append(wrong(check.name, str(error)))
    except PermissionError as error:
        do = "give this user access, or run the doctor as the user of the service"
        found.append(wrong(check.name, f"{error.filename}: {error.strerror}", do))
    except ImportError as error:
        package = (error.name or str(error)).split(".")[0]
        found.append(warning(check.name, f"not checked: the Python package {package} is not installed"))
    except Exception as error:
        found.append(warning(check.name, f"not checked: {type(error).__name__}: {error}"))
    return found


def without_secrets(found: Finding, settings: Settings) -> Finding:
    """Replace secrets of the settings, and passwords of their URLs, by ***."""
    secrets = {settings.blobs_secret_key.get_secret_value(), settings.extractor_key.get_secret_value()}
    for url in (settings.catalog_url, settings.bus_url, settings.blobs_url, settings.index_url, settings.extractor):
        try:
            password = urlsplit(url).password or ""
        except ValueError:
            continue
        secrets |= {password, unquote(password)}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        found = replace(found, fact=found.fact.replace(secret, "***"), advice=found.advice.replace(secret, "***"))
    return found
