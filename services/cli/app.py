"""The commands of `afterimage`, their error lines and their exit codes."""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from typing import Annotated

import typer

from services.cli import (
    backup,
    cache,
    credentials,
    dead_letters,
    erase,
    generate,
    health,
    jobs,
    keys,
    models,
    monitor,
    up,
)
from services.cli.demo import command as demo
from services.cli.demo import video as demo_video
from services.cli.display.help import teach
from services.cli.doctor import command as doctor
from services.cli.profiles import command as profile
from services.cli.replays import command as replay
from services.cli.training import command as training
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    DeadlineError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    PermissionDeniedError,
    StorageFullError,
    UnauthenticatedError,
    UnavailableError,
)
from shared.runtime.addresses import SilentError
from shared.runtime.extras import missing_packages_named
from shared.runtime.settings_names import WRONG, in_words, misspelt


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"afterimage {metadata.version('afterimage')}")
        raise typer.Exit


app = typer.Typer(
    name="afterimage",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    help=(
        "Generates images from text. Requests start from cached images and latents of similar requests.\n\n"
        "See it work:            [bold]afterimage demo[/bold]\n\n"
        "Generate one image:     [bold]afterimage generate 'a red fox in the snow'[/bold]\n\n"
        "Serve, then generate:   [bold]afterimage up[/bold], then [bold]afterimage generate …[/bold] elsewhere\n\n"
        "Every setting is also an AFTERIMAGE_… variable. An option overrides its variable."
    ),
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version and exit.")
    ] = False,
) -> None: ...


app.command("up")(up.up)
app.command("generate")(generate.generate)
app.add_typer(jobs.app, name="jobs")
app.add_typer(cache.app, name="cache")
app.command("erase")(erase.erase)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(keys.app, name="keys")
app.command("credentials")(credentials.credentials)
app.command("health")(health.health)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")
app.command("monitor")(monitor.monitor)
app.command("profile")(profile.profile)
app.command("replay")(replay.replay)
app.add_typer(training.app, name="train")
app.command("demo")(demo.demo)
app.command("demo-video")(demo_video.demo_video)
teach(app)

OPTIONS = {"from_job": "--from", "continue_job": "--continue", "negative_prompt": "--negative"}
"""Fields of a request whose options have other names."""
FIELD = re.compile(
    r"(?P<quoted>(?<!\w)(['\"`])(?:\\.|(?!\2).)*\2)"
    rf"|(?<![\w/.-])(?P<field>{'|'.join(OPTIONS)})(?![\w/-]|\.\w)"
)
"""A field in a message; text in quotes and parts of a path match as a whole, or not at all."""

EXIT_CODES: tuple[tuple[type[AfterimageError], int], ...] = (
    (InvalidRequestError, os.EX_USAGE),
    (StorageFullError, os.EX_IOERR),
    (OverloadedError, os.EX_TEMPFAIL),
    (DeadlineError, os.EX_TEMPFAIL),
    (SilentError, os.EX_TEMPFAIL),
    (UnavailableError, os.EX_UNAVAILABLE),
    (UnauthenticatedError, os.EX_NOPERM),
    (PermissionDeniedError, os.EX_NOPERM),
    (ConfigurationError, os.EX_CONFIG),
    (ModelError, os.EX_CONFIG),
)
"""Exit codes of sysexits(3), by which scripts distinguish a wrong call from a busy service; any other error is 1."""


def exit_code(error: AfterimageError) -> int:
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Run a command; an error becomes one line on stderr and an exit code."""
    for line in misspelt(os.environ):
        sys.stderr.write(f"afterimage: {line}\n")
    try:
        with missing_packages_named("afterimage"):
            app()
    except AfterimageError as error:
        _leave(str(error), exit_code(error))
    except WRONG as error:
        _leave(in_words(error), os.EX_CONFIG)
    except KeyboardInterrupt:
        _leave("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has closed the pipe
        raise SystemExit(141) from None


def _leave(message: str, code: int) -> None:
    said = FIELD.sub(lambda found: OPTIONS.get(found["field"], found[0]), message)
    sys.stderr.write(f"afterimage: {said}\n")
    raise SystemExit(code) from None
