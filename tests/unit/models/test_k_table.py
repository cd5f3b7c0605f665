"""Which similarity → K table is in force, and what is said when it is not the one that was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.embedder.encoder import encoder_hash
from shared.models.card import BUNDLED, ModelCard, bundled_cards, find_card
from shared.models.k_table import (
    FIG_10,
    KTable,
    Level,
    doubts,
    load_k_table,
    read_table,
    shipped_table,
    table_file,
    table_to_json,
)


class Nothing:
    """No profile was ever stored."""

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
        return None


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "weights.safetensors").write_bytes(b"some")
    for alpha in (0.9, 0.95):
        table = KTable((Level(5, alpha),), alpha=alpha)
        (tmp_path / f"k_table_{alpha:g}.json").write_text(json.dumps(table_to_json(table)))
    (tmp_path / "k_table_0.92.json").write_text("[]")  # broken
    return ModelCard(name="mine", path=str(tmp_path))


@pytest.mark.parametrize(("wanted", "got"), [(0.9, 0.9), (0.91, 0.95), (0.95, 0.95), (0.5, 0.9), (0.97, 0.95)])
async def test_the_next_stricter_table_that_ships_is_used(card: ModelCard, wanted: float, got: float) -> None:
    table = await load_k_table(Nothing(), card, wanted)
    assert (table.alpha, table.source) == (got, f"{card.folder.name}/k_table_{got:g}.json")
    notes = doubts(table, card, "", wanted)
    assert bool(notes) is (got < wanted)
    assert all("measured for alpha 0.95, not 0.97" in note for note in notes)


async def test_a_model_that_nobody_measured_says_so(card: ModelCard) -> None:
    for path in card.folder.glob("k_table_*.json"):
        path.unlink()
    table = await load_k_table(Nothing(), card, 0.97)
    assert table == FIG_10
    (note,) = doubts(table, card, "", 0.97)
    assert note.startswith("k_table: none measured for mine at alpha 0.97, NIRVANA Fig. 10 is used")
    assert doubts(table, find_card("noop:"), "", 0.97) == ()


def test_the_table_that_the_card_names_counts_for_the_alpha_it_was_measured_with(card: ModelCard) -> None:
    named = replace(card, k_table="own.json")
    (card.folder / "own.json").write_text(json.dumps(table_to_json(KTable((Level(5, 0.1),), alpha=0.93))))
    for wanted, got in ((0.93, 0.93), (0.94, 0.95)):
        table = shipped_table(named, wanted)
        assert table is not None
        assert table.alpha == got


def test_every_table_that_ships_was_measured_with_the_weights_that_ship() -> None:
    encoder = encoder_hash(BUNDLED / "clip")
    found = []
    for name, card in bundled_cards().items():
        for path in sorted(card.folder.glob("*k_table_*.json")):
            table = read_table(path)
            found.append((name, path.name))
            assert path.name == table_file(table)
            assert (table.model, table.weights_hash, table.encoder_hash) == (name, card.weights_hash, encoder), path
            if table.images_from:
                assert table.images_weights_hash == bundled_cards()[table.images_from].weights_hash, path
    starts = {"large": ("small",), "small": ("large", "small")}
    expected = {(name, f"{kind}_{alpha}.json") for name, others in starts.items() for alpha in ("0.9", "0.95")
                for kind in ("k_table", *(f"image_k_table_{other}" for other in others))}  # fmt: skip
    assert set(found) == expected
