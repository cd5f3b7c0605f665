"""Recognition of a published checkpoint in a folder of weights, by its configurations and headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models.checkpoint import INDEX, kind_of, parameters, read_json

SHAPES = ("family", "sampler", "latent_channels", "vae_scale", "default_size")
"""Fields of a card that the weights decide."""


OF_SIZE = ("sizes", "denoiser_parameters", "text_parameters", "vae_parameters", "row_values", "decode_values")
"""Fields of a card that hold for one default size."""


class Published(Protocol):
    """Part of a known card that is compared with weights."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def default_size(self) -> Size: ...
    @property
    def denoiser_parameters(self) -> int: ...


C = TypeVar("C", bound=Published)


def published(folder: Path, said: Mapping[str, Any], known: Iterable[C]) -> list[C]:
    """Return the `known` cards that match the weights in `folder`: family, default size, and parameters of the
    denoiser.

    A checkpoint and its distilled version may share all three. Then the name decides: the folder's name, its name in
    the hub's cache, or `_name_or_path` of model_index.json. `said` holds the fields from the configurations.
    """
    shape = said.get("family"), said.get("default_size")
    alike = [card for card in known if (card.family, card.default_size) == shape]
    kind = kind_of(folder) if alike else None
    if kind is None:
        return []
    try:
        count = parameters(folder).get(kind.denoiser)
    except ModelError:  # a broken file; loading reports it
        return []
    alike = [card for card in alike if card.denoiser_parameters == count]
    named = [card for card in alike if _names(folder) & {card.name, card.path.rpartition("/")[2].lower()}]
    return named if len(alike) > 1 and named else alike


def _names(folder: Path) -> set[str]:
    """Return the checkpoint's names in lower case; `models--OWNER--NAME/snapshots/REVISION` is the hub's cache."""
    written = str(read_json(folder / INDEX).get("_name_or_path", ""))
    cached = folder.absolute().parent.parent.name.rpartition("--")[2]
    return {folder.name.lower(), cached.lower(), written.rpartition("/")[2].lower()}
