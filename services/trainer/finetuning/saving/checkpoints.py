"""Checkpoints of a run: written by all ranks, complete or absent, checked when read, kept for the last few times."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from services.trainer.finetuning.ranks.group import Place, from_first, gathered
from shared.domain.errors import ModelError, StorageFullError

MANIFEST = "manifest.json"
DIGITS = 8


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints in a folder that all ranks share, one folder each, named by the iterations that were done."""

    folder: Path
    place: Place
    keep: int

    def save(self, iterations: int, tensors: Mapping[str, torch.Tensor], progress: Mapping[str, Any]) -> None:
        """Write the tensors of all ranks and the progress of the run; a kill leaves a whole checkpoint or none.

        tensors: this rank's, by names that are equal on every rank that holds the same tensor. All ranks call it.
        Raises StorageFullError where the disk is full.
        """
        target = self.folder / f"{iterations:0{DIGITS}}"
        try:
            self._save(target, tensors, {"iterations": iterations, "progress": dict(progress)})
        except (CheckpointException, OSError) as error:
            raise StorageFullError(f"checkpoint {target} cannot be written: {_said(error)}") from error

    def _save(self, target: Path, tensors: Mapping[str, torch.Tensor], manifest: Mapping[str, Any]) -> None:
        partial = target.with_suffix(".partial")
        if self.place.leads:
            for leftover in (*self.folder.glob("*.partial"), *self.folder.glob("*.old")):
                shutil.rmtree(leftover, ignore_errors=True)
            partial.mkdir(parents=True, exist_ok=True)
        gathered(self.place, None)  # a barrier: the folder is there
        with _quiet():
            save(dict(tensors), checkpoint_id=partial)
        digests = self._digests(partial)
        if self.place.leads:
            _write_through(partial / MANIFEST, json.dumps({**manifest, "files": digests}, indent=1) + "\n")
            if target.exists():  # a broken one that was passed over
                target.rename(target.with_suffix(".old"))
            os.replace(partial, target)
            good = [path for path in self._found() if path <= target]  # later ones were broken and passed over
            for old in good[self.keep :]:
                shutil.rmtree(old, ignore_errors=True)
        gathered(self.place, None)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any] | None, list[str]]:
        """Read the newest whole checkpoint into `tensors`; return its progress, and a line for each that is broken.

        Any number of ranks may have written it. None without a whole checkpoint; `tensors` are then as before. All
        ranks call it. Raises ModelError where none of several is whole: it may be this installation that cannot read
        them, and to begin again would remove them.
        """
        broken = []
        for path in from_first(self.place, self._found()):
            wrong = self._wrong(path)
            if not wrong:
                wrong = self._read(path, tensors)
            if wrong:
                broken.append(f"checkpoint {path} is broken: {wrong}")
                continue
            progress: dict[str, Any] = json.loads((path / MANIFEST).read_text())["progress"]
            return progress, broken
        if len(broken) > 1:
            begin = f"remove {self.folder} to begin the run again"
            raise ModelError(f"none of {len(broken)} checkpoints can be read; {begin} ({broken[0]})")
        return None, broken

    def _found(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted((path for path in self.folder.glob("*") if path.name.isdigit()), reverse=True)

    def _wrong(self, path: Path) -> str:
        """Return what is wrong with a checkpoint's files, the same on every rank; empty for a whole one."""
        files, wrong = from_first(self.place, _listed(path) if self.place.leads else ({}, ""))
        if wrong:
            return wrong
        try:
            here, unread = self._digests(path), ""
        except OSError as error:
            here, unread = {}, str(error)
        if found := next(filter(None, gathered(self.place, unread)), ""):
            return found
        return "; ".join(
            f"{name} is {'not what was written' if name in here else 'missing'}"
            for name, digest in files.items()
            if here.get(name) != digest
        )

    def _read(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
        """Read a checkpoint into tensors; return why that failed on some rank, else an empty text.

        It is read into copies first, on the CPU: a failure changes nothing, and a full GPU can go on.
        """
        held = {name: torch.empty_like(value, device="cpu") for name, value in tensors.items()}
        try:
            with _quiet():
                load(held, checkpoint_id=path)
            wrong = ""
        except (CheckpointException, OSError, RuntimeError, ValueError) as error:
            wrong = _said(error)
        if found := next(filter(None, gathered(self.place, wrong)), ""):
            return found
        with torch.no_grad():
            for name, value in tensors.items():
                value.copy_(held[name])
        return ""

    def _digests(self, folder: Path) -> dict[str, str]:
        """Return the sha256 of every file by name; the ranks share the work."""
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
        names = from_first(self.place, names)
        own: dict[str, str] = {}
        failed: OSError | None = None
        try:
            for name in names[self.place.rank :: self.place.world]:
                with (folder / name).open("rb") as file:
                    own[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:  # the other ranks wait for this one's digests
            failed = error
        merged: dict[str, str] = {}
        for one in gathered(self.place, own):
            merged |= one
        if failed is not None:
            raise failed
        return dict(sorted(merged.items()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warnings about a single process, and about deprecated parts of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _listed(path: Path) -> tuple[dict[str, str], str]:
    """Return the digests in a checkpoint's manifest, or why it cannot be read."""
    try:
        return dict(json.loads((path / MANIFEST).read_text())["files"]), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {}, f"{MANIFEST}: {error}"


def _write_through(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _said(error: BaseException) -> str:
    """Return the first useful line of an error; DCP wraps those of the ranks."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    return next(iter(str(error).splitlines()), "") or type(error).__name__
