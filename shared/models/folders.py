"""Folders of models in transformers' layout: bundled, on this disk, or from the model hub."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from shared.domain.errors import ModelError
from shared.models.card import is_hub_id
from shared.models.card_lookup import BUNDLED, BUNDLED_PREFIX
from shared.models.hub import WEIGHTS, note_fetched, repository


class NotHereError(ModelError):
    """The files of a hub id are not on this disk.

    Allow downloads, or name a local folder.
    """


def transformers_folder(
    name: str, setting: str, choices: str = "a bundled name, a folder or a hub id", *, fetch: bool = True
) -> Path:
    """Return the folder with a model's files: of `bundled:NAME` or a bundled name, of a folder, or of a hub id.

    Files of a hub id are fetched on first use, pickles never; with `fetch` false, only the hub's cache on this disk is
    searched, and NotHereError raised. setting, choices: what an error names. Raise ModelError with the searched places.
    """
    bundled = BUNDLED / name.removeprefix(BUNDLED_PREFIX)
    for folder in (bundled, Path(name).expanduser()):
        if (folder / "config.json").is_file():
            return folder
    if name.startswith(BUNDLED_PREFIX) or name.endswith(".gguf") or not is_hub_id(name):
        places = dict.fromkeys((str(bundled), name))
        missing = "no such file" if name.endswith(".gguf") else f"no config.json in {' or '.join(places)}"
        raise ModelError(f"{setting} {name!r}: {missing}; set AFTERIMAGE_{setting.upper()} to {choices}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    owner_name, revision = repository(name)

    def snapshot_of(revision: str | None, files: Sequence[str], *, here: bool) -> Path:
        found = snapshot_download(owner_name, revision=revision, allow_patterns=list(files), local_files_only=here)
        return Path(found)

    before = None
    try:
        with contextlib.suppress(LocalEntryNotFoundError, HFValidationError):
            before = snapshot_of(revision, ["config.json"], here=True)
        # the commit of before, whose missing files are fetched: with another encoder the whole cache would be lost
        snapshot = snapshot_of(revision or (before.name if before else None), WEIGHTS, here=not fetch)
    except Exception as error:
        kind = ModelError if fetch else NotHereError
        raise kind(
            f"{setting} {name!r}: the download from the model hub failed ({error}); check the id and the network"
        ) from error
    if before is None:
        note_fetched(name, snapshot)
    return snapshot
