"""Checkpoints of the model hub: the cache on this disk, and downloads with clear errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.domain.errors import ModelError
from shared.models.checkpoint import INDEX, components, faults, kind_of, missing
from shared.runtime.telemetry import log

CONFIGURATIONS = (INDEX, "*/*.json")
WEIGHTS = ("*.json", "*.txt", "*.model", "*.safetensors")
NEVER = ("*.fp16*", "*.bf16*", "*.non_ema*", "*.bin", "*.onnx*", "*.msgpack", "*.ckpt", "*.pt", "*.pth")
"""Patterns of files that are never fetched: variants that are not loaded, and pickles."""


def repository(hub_id: str) -> tuple[str, str | None]:
    """Return the repository `owner/name` and the revision of a hub id `owner/name` or `owner/name@revision`.

    A revision is a commit, tag or branch; None: the hub's `main` of the first whole download."""
    name, _, revision = hub_id.partition("@")
    return name, revision or None


def cached(hub_id: str) -> Path | None:
    """Return the snapshot in the hub's cache, complete or not; None if there is none. Use no network."""
    from huggingface_hub import snapshot_download  # imported here, since only a hub id needs the hub's client
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    name, revision = repository(hub_id)
    try:
        # completeness is checked here: the hub's client would call a snapshot without its pickles incomplete
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=[INDEX]))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if (folder / INDEX).is_file() else None


def configurations(hub_id: str, name: str) -> Path:
    """Return a snapshot with at least the configurations. Raise ModelError with the reason if that fails."""
    folder = cached(hub_id)
    seen = folder is not None and (folder / "vae" / "config.json").is_file()
    return folder if folder is not None and seen else _fetched(hub_id, name, CONFIGURATIONS)


def checkpoint(hub_id: str, name: str) -> Path:
    """Return a snapshot with everything that loading needs.

    A complete snapshot in the cache needs no network; otherwise the missing files are fetched. Raise ModelError with
    the missing files and the reason if that fails."""
    folder = cached(hub_id)
    if folder is None or not components(folder) or missing(folder):
        folder = _fetched(hub_id, name, CONFIGURATIONS)
        kind_of(folder)  # reject an unsupported pipeline before fetching its weights
        folder = _fetched(hub_id, name, [INDEX, *(f"{part}/{file}" for part in components(folder) for file in WEIGHTS)])
        note_fetched(hub_id, folder)
    if lacking := missing(folder):
        raise ModelError(f"model {name!r}: path: {hub_id!r} has no {', '.join(lacking)}")
    if wrong := faults(folder):
        raise ModelError(
            f"model {name!r}: path: {hub_id!r} is not whole: {wrong}; delete that file, so that it is fetched again"
        )
    return folder


def note_fetched(hub_id: str, snapshot: Path) -> None:
    """Log the commit that a download without a revision got: another machine may get a later one."""
    if repository(hub_id)[1] is None:
        log("hub").warning("fetched the hub's main", id=hub_id, pinned=f"{hub_id}@{snapshot.name}")


def _fetched(hub_id: str, name: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    owner_name, revision = repository(hub_id)
    try:
        folder = Path(
            snapshot_download(owner_name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(NEVER))
        )
    except Exception as error:
        raise ModelError(f"model {name!r}: path: {_why(hub_id, error)}") from error
    if not components(folder):
        raise ModelError(f"model {name!r}: path: {hub_id!r} has no {INDEX} with components: not in diffusers' layout")
    return folder


def _why(hub_id: str, error: Exception) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, RevisionNotFoundError):
        name, revision = repository(hub_id)
        return f"the hub's {name!r} has no revision {revision!r}"
    if isinstance(error, GatedRepoError):
        return (
            f"{hub_id!r} is gated: accept its terms on its page of the hub, then log in (`hf auth login`, or HF_TOKEN)"
        )
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {hub_id!r} (a private one needs `hf auth login`, or HF_TOKEN)"
    if isinstance(error, HFValidationError):
        return f"{hub_id!r} is no hub id: owner/name"
    here = cached(hub_id)
    state = f"not whole on this disk (missing {', '.join(missing(here))})" if here else "not on this disk"
    first = str(error).strip().partition("\n")[0]
    return f"{hub_id!r} is {state} and cannot be fetched: {type(error).__name__}: {first}"
