"""The first key, which the first start of a guarded address makes."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from shared.catalog import Keys
from shared.domain.errors import ConfigurationError
from shared.domain.identity import BOOTSTRAP, ApiKey, Role, digest, issued, parsed, principal_of
from shared.runtime.audit import record
from shared.runtime.datadir import OTHERS, private_file, private_folder, private_opener
from shared.runtime.telemetry import log


def _left_text(path: Path) -> str:
    """Return what the file holds. Raises PermissionError for a file that another user may have written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="utf-8") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & OTHERS:
            raise PermissionError(
                f"{path} must be a file of this user with mode 0600, or others know its key; remove it"
            )
        return file.read().strip()


async def make_first_key(keys: Keys, folder: Path) -> None:
    """Make the first key, with every role in the tenant `default`; only a file of the owner holds its text."""
    path = folder / "bootstrap-key"
    if await keys.all():
        private_file(path)
        return
    who = principal_of("default", BOOTSTRAP, Role)
    try:
        text = await asyncio.to_thread(_first_text, path, issued(who, BOOTSTRAP)[1])
    except OSError as error:
        log("door").warning("no bootstrap key", why=str(error), do="run `afterimage keys create`")
        return
    key = ApiKey(BOOTSTRAP, digest(text.partition(".")[2]), who)
    try:
        first = await keys.add_first(key)
    except ConfigurationError as error:  # the catalog's user may not make keys
        await asyncio.to_thread(path.unlink)
        log("door").warning("no bootstrap key", why=str(error), do="run `afterimage keys create` as an administrator")
        return
    if first:
        log("door").warning("made the first key, with every role", file=str(path), do="read it, then delete the file")
        record(folder, actor="local:start", action="keys create", target=key.id)
    else:  # another replica was first
        await asyncio.to_thread(path.unlink)


def _first_text(path: Path, text: str) -> str:
    """Return the key in the file; write `text` there first, unless an earlier start did so and ended before the catalog
    had the key."""
    private_folder(path.parent, tighten=False)
    try:
        with open(path, "x", opener=private_opener) as file:
            file.write(f"{text}\n")
        return text
    except FileExistsError:
        left = _left_text(path)
    if (found := parsed(left)) is None or found[0] != BOOTSTRAP:
        raise FileExistsError(f"{path} is there, and has no key of a first start; remove it")
    return left
