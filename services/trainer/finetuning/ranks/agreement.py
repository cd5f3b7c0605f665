"""What all ranks must agree on before they train: ranks of several machines read files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.trainer.finetuning.ranks.group import Place, gathered, made_by_first
from services.trainer.finetuning.settings import RunSettings
from shared.domain.errors import ConfigurationError


def check_settings(place: Place, settings: RunSettings) -> None:
    """Raise ConfigurationError where a rank has other settings than the first one, or the ranks are too many."""
    found = gathered(place, settings.model_dump(mode="json"))

    def check() -> None:
        settings.check_ranks(place.world)
        first = dict(_flat(found[0]))
        for rank, own in enumerate(found):
            for name, value in _flat(own):
                if name not in first or first[name] != value:
                    raise ConfigurationError(
                        f"{name}: rank {rank} has {value!r}, and the first rank {first.get(name)!r}; give all machines "
                        "the same settings file"
                    )

    made_by_first(place, check)


def check_same(place: Place, digest: str, what: str) -> None:
    """Raise ConfigurationError where a rank has read another file than the first one.

    digest: of the contents. what: the setting that names the file, and the file, as in "out: index".
    """
    found = gathered(place, digest)

    def check() -> None:
        for rank, own in enumerate(found):
            if own != found[0]:
                raise ConfigurationError(
                    f"{what}: rank {rank} reads another one than the first rank; all machines need the same files"
                )

    made_by_first(place, check)


def _flat(settings: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its name with dots."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{table}{name}.")
        else:
            yield table + name, value
