"""The table of `models check`: every property of a model that is known without loading it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from shared.domain.errors import ModelError
from shared.models import checkpoint, memory
from shared.models.k_table import NoProfiles
from shared.models.learned_table import learned_for, load_learned
from shared.models.tables_in_force import latent_table, load_k_tables, profile_command

if TYPE_CHECKING:
    from shared.models import ModelCard
    from shared.models.k_table import KTable, Profiles
    from shared.models.learned_table import LearnedTable
    from shared.runtime.settings import Settings


def model_sheet(card: ModelCard, folder: Path | None, settings: Settings) -> Table:
    """Return a table of everything that is known without loading the model."""
    need = memory.largest_batch(card)
    guidance = f"{card.default_guidance:g} ({card.guidance_min:g} to {card.guidance_max:g})"
    wrong = checkpoint.faults(folder) if folder else "everything is missing"
    rows = {
        "model": f"{card.name}: {card.about}" if card.about else card.name,
        "where": str(folder) if folder else f"{card.path} (not on this disk)",
        "family": f"{card.family}: supported",
        "sampler": card.sampler,
        "size · latent": f"{card.default_size} (generates {card.sizes}) · {latent_shape(card)}",
        **({"frames": f"{card.frames.default} (generates {card.frames})"} if card.frames.most > 1 else {}),
        "T · guidance": f"{card.default_steps}{_planned(card)} · {guidance}",
        "dtype": card.dtype,
        "parameters": memory.parameters_said(card),
        "memory": memory.breakdown(card, need, settings.offload),
        "reuse": reuse(card, settings) if folder and not wrong else "not known until it is whole on this disk",
        "missing or broken": wrong,
    }
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, Text(value or "nothing"))
    return table


def _planned(card: ModelCard) -> str:
    return f", or planned among {', '.join(map(str, card.auto_steps))}" if card.auto_steps else ""


def reuse(card: ModelCard, settings: Settings) -> str:
    """Return the learned bound or K table in force for the model's own latents and the encoder, or the command that
    measures one."""
    from services.embedder.encoder import encoder_folder, encoder_id
    from shared.catalog.probe import unchanging

    try:
        encoder = encoder_id(encoder_folder(settings.encoder, fetch=False))
    except ModelError:
        return f"not known: the encoder {settings.encoder!r} is not on this disk"
    alpha = settings.k_table_alpha
    try:
        url = unchanging(settings.catalog_url)
        measured = _in_catalog(card, url, alpha) if url else _measured(NoProfiles(), card, alpha)
        tables, bounds = asyncio.run(measured)
    except Exception as error:  # an older version's catalog, or none: the rest of the table is shown
        return f"not known: the catalog cannot be read: {error}"
    learned = learned_for(bounds, card, encoder, alpha)
    if learned is not None and settings.reuse_bound == "auto" and settings.reuse_rules == "relation":
        return f"by {learned.source}"
    command = profile_command(settings.large, settings.encoder, alpha)
    table, notes = latent_table(tables, card, encoder, alpha, command)
    return "; ".join([*([f"by {table.source}"] if table else []), *notes])


async def _measured(
    profiles: Profiles | NoProfiles, card: ModelCard, alpha: float
) -> tuple[tuple[KTable, ...], tuple[LearnedTable, ...]]:
    return await load_k_tables(profiles, card, alpha), await load_learned(profiles, card)


async def _in_catalog(card: ModelCard, url: str, alpha: float) -> tuple[tuple[KTable, ...], tuple[LearnedTable, ...]]:
    """Return the K tables and learned bounds in the catalog and those that ship; the catalog is only read."""
    from shared.catalog import Profiles as Stored
    from shared.catalog.engines.opening import open_database
    from shared.runtime.clock import SystemClock

    database = open_database(url, SystemClock())
    try:
        return await _measured(Stored(database), card, alpha)
    finally:
        await database.close()


def latent_shape(card: ModelCard) -> str:
    size, frames = card.default_size, card.frames
    length = "" if frames.default == 1 else f"{(frames.default - 1) // frames.per_latent + 1}×"
    return f"{card.latent_channels}×{length}{size.height // card.vae_scale}×{size.width // card.vae_scale}"
