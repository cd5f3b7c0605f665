"""The model that generates the requests of a trace: its card, its sizes, the bytes of a state, its K table."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_state
from services.replay.run import STEPS
from services.replay.study import Asked
from services.replay.traces.trace import Trace
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import Size
from shared.models.card import ModelCard
from shared.models.card_lookup import VIDEO, served_card, served_cards
from shared.models.k_table import KTable, NoProfiles
from shared.models.tables_in_force import latent_table, load_k_tables, profile_command
from shared.runtime.settings import Settings


def generating_card(base: Settings, frames: int) -> ModelCard:
    """Return the card of the model that generates images (1 frame), or clips of this many frames.

    Raises ConfigurationError without a model of clips, and InvalidRequestError for a length that the model refuses.
    """
    if frames == 1:
        return served_card(base)
    card = next((one for one in served_cards(base).values() if one.role == VIDEO), None)
    if card is None:
        raise ConfigurationError(f"video: names no model, and the trace has clips of {frames} frames; set `model`")
    if not card.frames.allows(frames):
        raise InvalidRequestError("frames", f"model {card.name!r} generates {card.frames} frames", frames)
    return card


def state_bytes_of(card: ModelCard) -> int:
    """Return the bytes of a stored fp16 latent of one frame of the model's own size."""
    size, scale = card.default_size, card.vae_scale
    latent = np.zeros((card.latent_channels, size.height // scale, size.width // scale), np.float32)
    return len(encode_state(latent, "fp16"))


def as_generated(trace: Trace, asked: Asked, base: Settings, card: ModelCard, steps: int) -> Trace:
    """Return the trace with the sizes and the T of its requests. steps: T of all requests; 0: not given.

    Raises ConfigurationError and InvalidRequestError for sizes and steps that the model refuses.
    """
    most = min(card.max_steps, base.max_steps)
    if asked.schedule is None and (steps or STEPS) > most:
        rule = f"model {card.name!r} takes at most {most} steps; set real.steps or trace_steps"
        raise InvalidRequestError("real.steps", rule, steps or STEPS)
    if steps:
        trace = replace(trace, steps=np.full(len(trace), steps, np.int64))
    return replace(trace, sizes=_sizes(trace, card, honoured=asked.honour_sizes))


def _sizes(trace: Trace, card: ModelCard, *, honoured: bool) -> tuple[Size, ...]:
    """Return the model's own size for every request, or the trace's sizes, which the model must allow."""
    if not honoured:
        return (card.default_size,) * len(trace)
    for size in dict.fromkeys(trace.sizes):
        if not card.sizes.allows(size):
            rule = f"model {card.name!r} generates {card.sizes}; leave out honour_sizes for its own size"
            raise InvalidRequestError("honour_sizes", rule, size)
    return trace.sizes


def table_in_force(base: Settings, card: ModelCard, encoder: Encoder, alpha: float) -> KTable:
    """Return the services' table for the model's own latents; an empty table, with the reason as source, if none."""
    tables = asyncio.run(load_k_tables(NoProfiles(), card, alpha))
    given = base.video if card.role == VIDEO else base.large
    table, notes = latent_table(tables, card, encoder.id, alpha, profile_command(given, base.encoder, alpha))
    return table or KTable((), source="; ".join(notes))
