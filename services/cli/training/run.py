"""`afterimage train run`: fine-tune a checkpoint, on one rank or on those that torchrun starts."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from shared.domain.errors import AfterimageError
from shared.runtime.progress import say

Optional = typer.Option


def run(
    config: Annotated[Path, typer.Argument(help="Settings of the run (.toml).")],
    iterations: Annotated[int | None, Optional(help="Iterations over the whole run, instead of the file's.")] = None,
    out: Annotated[Path | None, Optional("--out", "-o", help="Folder of the run, instead of the file's.")] = None,
    estimate: Annotated[
        bool, Optional("--estimate", help="Print the estimate of time and memory, and do not train.")
    ] = False,
) -> None:
    """Fine-tune a checkpoint on captioned images, and write a model that `afterimage up --large` serves.

    A run that was stopped goes on from its last checkpoint when the same command is given again, with any number of
    ranks. docs/training.md has the settings, and shows runs on several machines.

    [bold]Examples[/bold]

      afterimage train run photos.toml

      torchrun --nproc-per-node 2 -m services train run photos.toml
    """
    given: dict[str, Any] = {"iterations": iterations, "out": out}
    from services.cli.app import exit_code
    from services.trainer.finetuning.settings import read_run_settings

    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    settings = None
    try:
        settings = read_run_settings(config, {name: value for name, value in given.items() if value is not None})
        from services.trainer.finetuning.run import train

        loop = train(settings, say, estimate_only=estimate)
        code = 128 + loop.stopped_by if loop.stopped_by else 0
    except Exception as error:
        if alone or isinstance(error, ImportError):  # the command names the package
            raise
        if not isinstance(error, AfterimageError):
            traceback.print_exc()
        elif _prints(error) if settings else os.environ.get("LOCAL_RANK") == "0":  # one line for a machine's file
            sys.stderr.write(f"afterimage: {error}\n")
        _leave(exit_code(error) if isinstance(error, AfterimageError) else 1)
    if not alone:
        _leave(code)
    raise typer.Exit(code)


def _prints(error: AfterimageError) -> bool:
    """Return whether this rank prints an error; where another one has found it, that one does."""
    from services.trainer.finetuning.ranks.group import OtherRankError

    return not isinstance(error, OtherRankError)


def _leave(code: int) -> NoReturn:
    """End this rank at once: threads of its process group may wait for a lost rank, or for the interpreter's lock."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
