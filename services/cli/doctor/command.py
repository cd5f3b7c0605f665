"""`afterimage doctor`: settings, packages, disk, models, GPU, servers, clocks, access and the running service."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from services.cli.display.help import setting
from services.cli.display.words import wide
from services.cli.doctor.access import check_access
from services.cli.doctor.findings import Check, Finding, Verdict, findings, warning, without_secrets
from services.cli.doctor.models import check_gpu, model_checks
from services.cli.doctor.packages import check_packages
from services.cli.doctor.servers import check_service, server_checks
from services.cli.doctor.settings import check_settings, read_settings
from services.cli.doctor.storage import check_storage
from shared.runtime import telemetry
from shared.runtime.settings import Settings

LIMIT_S = 15.0
GPU_LIMIT_S = 60.0
"""Seconds of the check that imports torch and starts CUDA."""
STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.WRONG: "bold red"}


def doctor(
    data_dir: Annotated[Path | None, setting("data_dir")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON array.")] = False,
) -> None:
    """Check settings, packages, disk, models, GPU, servers, clocks and access; say what is wrong and what to do.

    Each line is ok, a warning, or wrong, with what was measured. The settings are those of the services: AFTERIMAGE_…
    variables, and --data-dir in place of one. The service that is asked is the one that works in this directory, else
    the one on the address of the setting listen. Nothing is changed: no file, table, queue or bucket is made, and
    nothing is fetched. Every check has a time limit, and one that cannot run says why. No password or key is printed.

    Exits with 0 when nothing is wrong, warnings included, and else with 78.

    [bold]Examples[/bold]

      afterimage doctor

      afterimage doctor --json
    """
    telemetry.configure_logging("error")
    logging.getLogger().addHandler(logging.NullHandler())  # the lines of libraries repeat what findings say
    out, found = wide(), list[Finding]()
    for one in examine(data_dir):
        found.append(one)
        if not as_json:
            advice = f": {one.advice}" if one.advice else ""
            verdict = Text(f"{one.verdict:<8}", STYLES[one.verdict])
            out.print(verdict + Text(f"{one.check:<15} {one.fact}{advice}"))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    if any(one.verdict is Verdict.WRONG for one in found):
        raise typer.Exit(os.EX_CONFIG)


def examine(data_dir: Path | None = None) -> Iterator[Finding]:
    """Yield the findings of every check, in order, without secrets. data_dir: in place of the setting."""
    settings, broken = read_settings(data_dir)
    if settings is None:
        yield from broken
        yield from findings(Check("packages", LIMIT_S, partial(check_packages, None)))
        yield warning("other checks", "not checked: the settings are wrong")
        return
    for check in _checks(settings, broken):
        yield from (without_secrets(one, settings) for one in findings(check))


def _checks(settings: Settings, broken: list[Finding]) -> list[Check]:
    return [
        Check("settings", LIMIT_S, partial(check_settings, settings, os.environ, broken)),
        Check("packages", LIMIT_S, partial(check_packages, settings)),
        Check("data directory", LIMIT_S, partial(check_storage, settings)),
        *model_checks(settings),
        Check("GPU", GPU_LIMIT_S, partial(check_gpu, settings)),
        *server_checks(settings),
        Check("access", LIMIT_S, partial(check_access, settings)),
        Check("service", LIMIT_S, partial(check_service, settings)),
    ]
