"""Checks of who may call: the public addresses, the API keys, the bootstrap key's file and the audit log."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.cli.doctor.findings import Finding, ok, warning, wrong
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.identity import BOOTSTRAP, ApiKey
from shared.runtime.audit import FILE, FILES
from shared.runtime.datadir import OTHERS, nearest
from shared.runtime.settings import Settings

NAME = "access"
DAY_S = 86400.0
SOON_S, SOON = 14 * DAY_S, 0.25
"""A key is near its end in the last 14 days, and at most in this share of its lifetime."""
MOST_KEYS = 5
"""Most keys that get a line each."""


def check_access(settings: Settings) -> Iterator[Finding]:
    try:
        from shared.service.door import keys_needed
    except ImportError:  # a client's installation serves nothing
        return
    addresses = [name for name in ("listen", "http_listen") if getattr(settings, name)]
    for name in addresses:
        yield from _address(settings, name)
    needed = any(keys_needed(settings, str(getattr(settings, name))) for name in addresses)
    keys: list[ApiKey] | None = None
    try:
        keys = _keys(settings)
        yield from compared_keys(keys, time.time(), needed=needed)
    except (AfterimageError, OSError) as error:
        yield warning(NAME, f"keys not checked: {error}")
    yield from _bootstrap_file(settings.data_dir / "bootstrap-key", keys)
    yield _audit(settings.data_dir.absolute() / FILE)
    for other in FILES[1:]:
        if (lines := settings.data_dir.absolute() / other).exists():
            yield _audit(lines)


def _address(settings: Settings, name: str) -> Iterator[Finding]:
    from shared.runtime.tls import https_of
    from shared.service.door import check_guarded, keys_needed, loopback

    address = str(getattr(settings, name))
    try:
        check_guarded(settings, name)
        tls = "TLS" if https_of(settings) else "no TLS"
    except ConfigurationError as error:
        if settings.mesh_certificates:
            yield warning(NAME, f"only for services that answer by mutual TLS. For the gateway, {error}")
        else:
            yield wrong(NAME, str(error))
        return
    if loopback(address):
        callers = "with an API key" if keys_needed(settings, address) else "without a key"
        yield ok(NAME, f"{name}: {address} is of this machine alone; it takes callers {callers}, {tls}")
    elif settings.allow_anonymous == "always":
        fact = f"{name}: anyone who reaches {address} may generate without a key, {tls}"
        yield warning(NAME, fact, "allow_anonymous=loopback asks for keys")
    elif tls == "TLS":
        yield ok(NAME, f"{name}: {address} takes callers with an API key, TLS")
    else:
        fact = f"{name}: {address} takes API keys in plain text, from the proxy that ends TLS"
        yield warning(NAME, fact, "let nobody but the proxy reach this address")


def _keys(settings: Settings) -> list[ApiKey]:
    from shared.catalog.probe import look_at_keys

    return asyncio.run(look_at_keys(settings.catalog_url))


def compared_keys(keys: Sequence[ApiKey], now: float, *, needed: bool) -> Iterator[Finding]:
    """Compare the keys' ends with the time, in Unix seconds. needed: an address takes no callers without a key."""
    live = [key for key in keys if key.revoked_at is None and not key.expired(now)]
    if not live:
        if not needed:
            yield ok(NAME, "no API key, and no address needs one")
        elif keys:
            fact = f"none of {len(keys)} API keys is live, so nobody may call"
            yield wrong(NAME, fact, "make one with `afterimage keys create`")
        else:
            yield ok(NAME, "no API key yet: the first start makes one, in bootstrap-key")
        return
    replaced = {key.replaces for key in keys}
    ends = {
        key: key.expires_at
        for key in live
        if key.expires_at is not None
        and key.id not in replaced  # `afterimage keys rotate` ends it
        and key.expires_at - now < min(SOON_S, SOON * (key.expires_at - key.created_at))
    }
    ending = sorted(ends, key=ends.__getitem__)
    for key in ending[:MOST_KEYS]:
        fact = f"key {key.id} of {key.principal.tenant}/{key.principal.subject} ends in {_lasting(ends[key] - now)}"
        yield warning(NAME, fact, f"`afterimage keys rotate {key.id}` makes its successor")
    if len(ending) > MOST_KEYS:
        yield warning(NAME, f"{len(ending) - MOST_KEYS} more keys end soon", "see `afterimage keys list`")
    if not ending:
        yield ok(NAME, f"{len(live)} live API key{'' if len(live) == 1 else 's'}, none near its end")


def _lasting(seconds: float) -> str:
    return f"{seconds / DAY_S:.1f} days" if seconds >= DAY_S else f"{seconds / 3600:.1f} hours"


def _bootstrap_file(path: Path, keys: Sequence[ApiKey] | None) -> Iterator[Finding]:
    """Yield a finding about a key's text that lies there. keys: None if they are not known."""
    if not path.exists():
        return
    ended = keys is not None and not any(key.id == BOOTSTRAP and key.revoked_at is None for key in keys)
    if ended and keys:
        yield warning(NAME, f"{path} holds a key that has ended", "delete the file")
    elif path.stat().st_mode & OTHERS:
        do = f"others may know the key: make another, then `afterimage keys revoke {BOOTSTRAP}` and delete the file"
        yield wrong(
            NAME, f"{path} holds a key with every role, and has mode {stat.S_IMODE(path.stat().st_mode):04o}", do
        )
    else:
        yield warning(NAME, f"{path} holds a key with every role", "keep the key in a safe place, and delete the file")


def _audit(path: Path) -> Finding:
    there = nearest(path)
    read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
    if read_only or not os.access(there, os.W_OK, effective_ids=True):
        do = "let the service's user write there; until then the log alone has what operators do"
        return warning(NAME, f"audit log: {path} cannot be written", do)
    if there == path and (mode := stat.S_IMODE(path.stat().st_mode)) & OTHERS:
        return warning(NAME, f"audit log: {path} has mode {mode:04o}, so other users may read it", f"chmod 600 {path}")
    return ok(NAME, f"audit log: {path}, {'writable' if there == path else 'not begun yet'}")
