"""Store a profile's tables, latency and codecs in the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.models import state_codecs
from shared.models.k_table import KTable, profile_kind, profile_of, table_to_json
from shared.models.latency import KIND
from shared.models.learned_table import LearnedTable, learned_kind, learned_name, learned_to_json
from shared.models.state_codecs import CodecChoice
from shared.runtime.datadir import private_folder
from shared.runtime.settings import Settings


async def store_measured(
    settings: Settings,
    tables: Sequence[Mapping[float, KTable]],
    latency: dict[str, Any] | None,
    mixed: Mapping[str, dict[str, Any]],
    learned: LearnedTable | None,
    choice: CodecChoice | None,
    about: Mapping[str, Any],
) -> str:
    """Store tables, learned bound, latency, step times of mixes and codecs in the catalog; return the catalog's place,
    without a password.

    tables: by α, one mapping for each T. Of further T, those of the card's `auto_steps` count. mixed: what
    mixes of sizes take, by kind.
    """
    from shared.catalog import open_catalog, place_of

    private_folder(settings.data_dir)
    catalog = await open_catalog(settings.catalog_url)
    try:
        for n, of in enumerate(tables):
            for alpha, table in of.items():
                apart = {"images": bool(table.images_from), "pairs": "segmenter" in about}
                kind = profile_kind(alpha, steps=table.steps if n else 0, **apart)
                await catalog.profiles.put(kind, profile_of(table), table.weights_hash, table_to_json(table))
        if learned is not None:
            kind, name = learned_kind(learned), learned_name(learned)
            await catalog.profiles.put(kind, name, learned.weights_hash, learned_to_json(learned))
        if latency is not None:
            await catalog.profiles.put(KIND, about["model"], about["weights_hash"], latency)
        for kind, value in mixed.items():
            await catalog.profiles.put(kind, about["model"], about["weights_hash"], value)
        if choice is not None:
            await catalog.profiles.put(
                state_codecs.KIND, choice.model, choice.weights_hash, state_codecs.choice_to_json(choice)
            )
    finally:
        await catalog.close()
    return place_of(settings.catalog_url)
