"""`afterimage replay --real`: what its options set, and what it says when it is broken off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from services.cli.embedded import embedded, settings_from
from shared import telemetry
from shared.remaining import Bar
from shared.settings import Settings

if TYPE_CHECKING:  # numpy and torch are imported when a trace is replayed, not when --help is read
    from services.replay.study import Asked
    from shared.models.card import ModelCard


OPTIONS = {
    "model": "large", "small": "small", "encoder": "encoder", "alpha": "k_table_alpha", "max_rows": "max_rows",
}  # fmt: skip
"""The options that are settings, by name."""


def settings_of(context: typer.Context) -> Settings:
    """Models, encoder and batching: options that were typed win over variables, and their defaults do not."""
    typed = {
        setting: context.params[option]
        for option, setting in OPTIONS.items()
        if (source := context.get_parameter_source(option)) is not None and source.name != "DEFAULT"
    }
    return settings_from(**typed)


def each(settings: Settings) -> int:
    """Bytes of one latent of the model's own size."""
    from services.replay.real import state_bytes_of
    from shared.models.card import served_card

    return state_bytes_of(served_card(settings))


def schedule_of(served: Settings | None, model: str | None) -> ModelCard:
    """The card of the model that draws, or would: with the limit on T that the gateway would hold it to."""
    from shared.models.card import served_card

    settings = served or settings_from(large=model)
    card = served_card(settings)
    return replace(card, max_steps=min(card.max_steps, settings.max_steps))


def drawn(
    asked: Asked, base: Settings, out: Path, one_at_a_time: bool, bar: Bar
) -> tuple[dict[str, Any], dict[str, Any], Sequence[str]]:
    """Summary, decisions, and the policies that are left."""
    from services.replay.real import Real, real_study

    telemetry.configure_logging("error")
    made = real_study(asked, Real(base, embedded, out, one_at_a_time), bar)
    return made.summary, made.decisions, made.left


def broken_off(console: Console, left: Sequence[str]) -> NoReturn:
    """What to do next; exit code 130."""
    console.print(
        Text(
            f"Broken off, not served: {', '.join(left)}. The same command goes on with the first of them.",
            style="yellow",
        )
    )
    raise typer.Exit(130)
