"""A replay on real models: the settings of a study, and the message after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from services.cli.embedded import embedded, settings_from
from services.replay.study_file import RealModels, Study
from shared.runtime import telemetry
from shared.runtime.progress import Bar
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # numpy and torch are imported when a trace is replayed, not when --help is read
    from services.replay.study import Asked
    from shared.models.card import ModelCard


def settings_of(study: Study) -> Settings:
    """Return the settings of a study: its models, encoder and batching override variables."""
    real = study.real or RealModels()
    return settings_from(
        large=study.model, small=real.small, encoder=study.encoder, k_table_alpha=study.alpha, max_rows=real.max_rows
    )


def each(settings: Settings) -> int:
    """Return the bytes of one latent of the model's own size."""
    from services.replay.real.replay import state_bytes_of
    from shared.models.card_lookup import served_card

    return state_bytes_of(served_card(settings))


def schedule_of(served: Settings | None, model: str | None) -> ModelCard:
    """Return the card of the study's model, with the gateway's limit on T."""
    from shared.models.card_lookup import served_card

    settings = served or settings_from(large=model)
    card = served_card(settings)
    return replace(card, max_steps=min(card.max_steps, settings.max_steps))


def drawn(
    asked: Asked, base: Settings, out: Path, one_at_a_time: bool, bar: Bar
) -> tuple[dict[str, Any], dict[str, Any], Sequence[str]]:
    """Serve every policy on real models; return summary, decisions, and the policies not served yet."""
    from services.replay.real.replay import Real, real_study

    telemetry.configure_logging("error")
    made = real_study(asked, Real(base, embedded, out, one_at_a_time), bar)
    return made.summary, made.decisions, made.left


def broken_off(console: Console, left: Sequence[str]) -> NoReturn:
    """Print how to continue an interrupted replay; exit with 130."""
    console.print(
        Text(
            f"Interrupted, not served: {', '.join(left)}. The same command continues with the first of them.",
            style="yellow",
        )
    )
    raise typer.Exit(130)
