"""The arrays of a learned bound, fitted by `afterimage profile`, and where they are loaded from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.k_table import EncoderId, Profiles
from shared.runtime.telemetry import log
from shared.runtime.unreadable import unreadable

KIND = "learned_bound"
"""Kind of learned bounds in the catalog, for starts from the model's own latents."""
IMAGE_KIND = "image_learned_bound"
MEASURES = ("fidelity", "attributes", "contrast", "saturation", "sharpness", "copying")
"""Measures of the arrays' last axis (shared.models.quality)."""
PLAIN = 9
"""Features of every bound, before knots and words (services/retriever/learned.py)."""
DIGITS = 8
"""Decimals of stored numbers."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Levels:
    """Measurements at one T."""

    ks: tuple[int, ...]
    """Measured K of this T, ascending."""
    change: Floats
    """(kinds, levels, measures): mean change of each measure against the reference, as a share of the reference's mean.
    Copying has its sign turned, so that less is worse for every measure."""
    error: Floats
    """(kinds, levels, measures): standard errors of `change`."""
    margin: float = 1.0
    """Calibrated: least expected margin of a start (services/retriever/learned.py)."""
    noise: Floats | None = None
    """(measures,): lower confidence bounds of the same changes for a run of T from noise; None: not measured."""
    variety: float | None = None
    """Lower confidence bound of such runs' variety, as a share of the reference's; None: not measured."""


@dataclass(frozen=True)
class LearnedTable:
    """A learned bound for one model, one encoder and one kind of start."""

    model: str
    weights_hash: str
    encoder_hash: str
    steps: int
    """T of the reference, from noise."""
    alpha: float
    """Share of fidelity and attributes to keep, for which the margins were calibrated."""
    kinds: tuple[str, ...]
    """Kinds of change that a profile measures."""
    knots: tuple[float, ...]
    """Similarities at which the effect of similarity on a kind's probability may change."""
    words: tuple[str, ...]
    """Words of the profile's prompts."""
    weights: Floats
    """(features, kinds): logistic regression from features to kinds of change; the last features are the words."""
    bias: Floats
    """(kinds,)"""
    levels: Mapping[int, Levels]
    """T → its measurements."""
    floor: float = -1.0
    """Similarity up to which nothing is reused: just below the least similar profiled pair that kept every bound."""
    codec: str = ""
    """Codec of the states that were measured; empty for images."""
    images_from: str = ""
    """The model whose images are the start; empty: the model's own latents."""
    images_weights_hash: str = ""
    unprompted: float = 0.0
    """ModelCard.unprompted of the measured runs."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Held-out figures."""
    source: str = ""
    """Origin of the bound, in words for users."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Return word → column."""
        return {word: n for n, word in enumerate(self.words)}

    def misfit(self, card: ModelCard, encoder: EncoderId, alpha: float) -> str:
        """Return why the bound does not apply to these weights, this encoder and this α; empty if it applies."""
        if self.weights_hash != card.weights_hash:
            return "it was fitted with other weights"
        if self.encoder_hash != encoder.hash:
            return "it was fitted with another encoder"
        if self.unprompted != card.unprompted:
            return f"it was fitted with unprompted = {self.unprompted:g}"
        return "" if self.alpha == alpha else f"its margins are calibrated for alpha {self.alpha:g}"


def learned_file(table: LearnedTable) -> str:
    """Return the file name beside the weights."""
    return f"image_learned_bound_{table.images_from}.json" if table.images_from else "learned_bound.json"


def learned_kind(table: LearnedTable) -> str:
    """Return the catalog's kind."""
    return IMAGE_KIND if table.images_from else KIND


def learned_name(table: LearnedTable) -> str:
    """Return the catalog's name: the model whose images the bound is for, or its own model."""
    return f"{table.model} from {table.images_from}" if table.images_from else table.model


def learned_to_json(table: LearnedTable) -> dict[str, Any]:
    """Return the JSON value that the catalog and the file beside the weights hold."""
    names = [name for name in LearnedTable.__dataclass_fields__ if name not in ("levels", "source")]
    levels = {
        str(steps): {name: _plain(value) for name, value in vars(one).items() if value is not None}
        for steps, one in table.levels.items()
    }
    return {**{name: _plain(getattr(table, name)) for name in names}, "measures": list(MEASURES), "levels": levels}


def learned_from_json(value: Mapping[str, Any], source: str = "") -> LearnedTable:
    """Read a bound from JSON. Raise ValueError, KeyError or TypeError for anything that is not a bound."""
    if tuple(value["measures"]) != MEASURES:
        raise ValueError(f"measures must be {MEASURES} (got {value['measures']}); fit the bound again")
    kinds, knots, words = (tuple(value[name]) for name in ("kinds", "knots", "words"))
    if not isinstance(value["levels"], Mapping):
        raise TypeError(f"levels must be an object (got {value['levels']!r})")
    levels = {int(steps): _levels(one, len(kinds)) for steps, one in value["levels"].items()}
    arrays = {
        "weights": _array(value["weights"], PLAIN + len(knots) + len(words), len(kinds)),
        "bias": _array(value["bias"], len(kinds)),
    }
    plain = {name: value[name] for name in LearnedTable.__dataclass_fields__.keys() & value.keys()}
    named: dict[str, Any] = {"kinds": kinds, "knots": knots, "words": words, "levels": levels, "source": source}
    named |= {name: float(plain[name]) for name in ("alpha", "floor") if name in plain}
    return LearnedTable(**{**plain, **arrays, **named})


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.round(value, DIGITS).tolist()
    return list(value) if isinstance(value, tuple) else value


def _levels(value: Mapping[str, Any], kinds: int) -> Levels:
    ks = tuple(int(k) for k in value["ks"])
    noise = _array(value["noise"], len(MEASURES)) if "noise" in value else None
    change, error = (_array(value[name], kinds, len(ks), len(MEASURES)) for name in ("change", "error"))
    variety = float(value["variety"]) if "variety" in value else None
    return Levels(ks, change, error, float(value["margin"]), noise, variety)


def _array(values: Any, *shape: int) -> Floats:
    found = np.asarray(values, np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"an array must hold finite numbers in the shape {shape} (got {found.shape})")
    return found


async def load_learned(profiles: Profiles, card: ModelCard, sources: Sequence[str] = ()) -> tuple[LearnedTable, ...]:
    """Return the bounds fitted here with these weights, then the shipped ones: for the model's own latents, and for
    images of `sources` (names of models)."""
    if card.is_noop:
        return ()
    names = [(KIND, card.name), *((IMAGE_KIND, f"{card.name} from {source}") for source in sources)]
    found = [await _stored(profiles, kind, name, card.weights_hash) for kind, name in names]
    shipped = await asyncio.to_thread(shipped_learned, card)
    return (*(one for one in found if one), *shipped)


def learned_for(
    tables: Iterable[LearnedTable],
    card: ModelCard,
    encoder: EncoderId,
    alpha: float,
    images_of: tuple[str, str] = ("", ""),
) -> LearnedTable | None:
    """Return the first bound that applies to these weights, this encoder and this α; None: none was fitted.

    images_of: name and weights hash of the model whose images are the start; empty: the model's own latents."""
    fits = (one for one in tables if (one.images_from, one.images_weights_hash) == images_of)
    return next((one for one in fits if not one.misfit(card, encoder, alpha)), None)


def shipped_learned(card: ModelCard) -> list[LearnedTable]:
    """Return the readable bounds in the model's folder."""
    try:
        paths = [*card.folder.glob("learned_bound.json"), *sorted(card.folder.glob("image_learned_bound_*.json"))]
    except ModelError as error:
        log("learned_bound").warning("no shipped bound", model=card.name, error=str(error))
        return []
    return [one for path in paths if (one := _read(path))]


def read_learned(path: Path) -> LearnedTable:
    return learned_from_json(json.loads(path.read_bytes()), f"{path.parent.name}/{path.name}")


def _read(path: Path) -> LearnedTable | None:
    try:
        return read_learned(path)
    except (ValueError, KeyError, TypeError, OSError) as error:
        log("learned_bound").warning("the shipped bound is ignored", bound=str(path), error=repr(error))
        return None


async def _stored(profiles: Profiles, kind: str, name: str, weights_hash: str) -> LearnedTable | None:
    value = await profiles.get(kind, name, weights_hash)
    try:
        return None if value is None else replace(learned_from_json(value), source=f"profile of {name}")
    except (ValueError, KeyError, TypeError) as error:
        unreadable("profiles", f"{kind} {name} {weights_hash}", error)
        return None
