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


def frames_of(study: Study, trace: Path) -> int:
    """Return the frames of the trace's requests: 1 for images."""
    from services.replay.traces.trace import read_trace

    return study.frames or read_trace(trace).frames


def settings_of(study: Study, frames: int) -> Settings:
    """Return the settings of a study: its models, encoder and batching override variables. frames: of each request."""
    real = study.real or RealModels()
    return settings_from(
        **{"video" if frames > 1 else "large": study.model},
        small=real.small,
        encoder=study.encoder,
        k_table_alpha=study.alpha,
        max_rows=real.max_rows,
    )


def each(settings: Settings, frames: int) -> int:
    """Return the bytes of one latent of the model's own size; of clips, of one frame."""
    from services.replay.real.model import generating_card, state_bytes_of

    return state_bytes_of(generating_card(settings, frames))


def schedule_of(served: Settings | None, model: str | None, frames: int) -> ModelCard:
    """Return the card of the study's model, with the gateway's limit on T."""
    from services.replay.real.model import generating_card

    settings = served or settings_from(large=model)
    card = generating_card(settings, frames if served else 1)
    return replace(card, max_steps=min(card.max_steps, settings.max_steps))


def drawn(
    asked: Asked, base: Settings, out: Path, given: RealModels, bar: Bar
) -> tuple[dict[str, Any], dict[str, Any], Sequence[str]]:
    """Serve every policy on real models; return summary, decisions, and the policies not served yet."""
    from services.replay.real.replay import Real, real_study

    telemetry.configure_logging("error")
    made = real_study(asked, Real(base, embedded, out, given.one_at_a_time, given.steps or 0), bar)
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
