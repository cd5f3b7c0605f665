"""Which similarity → K table is in force, and what is said when it is not the one that was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from services.cli.app import app
from services.embedder.encoder import encoder_hash
from shared.models.card import ModelCard
from shared.models.card_lookup import BUNDLED, bundled_cards, find_card
from shared.models.k_table import (
    CLIP_L14,
    FIG_10,
    PROFILED,
    EncoderId,
    KTable,
    Level,
    named_table,
    read_table,
    table_file,
    table_to_json,
)
from shared.models.tables_in_force import latent_table, load_k_tables, profile_command, shipped_table

ENCODER, CLIP = EncoderId("e1"), EncoderId("other", CLIP_L14)
RUN = "afterimage profile --model mine"


class Stored:
    """A catalog with one profile, or none."""

    def __init__(self, table: KTable | None = None) -> None:
        self._table = table

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
        return None if self._table is None else table_to_json(self._table)


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "weights.safetensors").write_bytes(b"some")
    card = ModelCard(name="mine", path=str(tmp_path))
    for alpha in (0.9, 0.95):
        table = KTable((Level(5, alpha),), alpha=alpha, weights_hash=card.weights_hash, encoder_hash=ENCODER.hash)
        (tmp_path / f"k_table_{alpha:g}.json").write_text(json.dumps(table_to_json(table)))
    (tmp_path / "k_table_0.92.json").write_text("[]")  # broken
    return card


async def in_force(
    card: ModelCard, alpha: float, encoder: EncoderId = ENCODER, stored: KTable | None = None
) -> tuple[KTable | None, tuple[str, ...]]:
    return latent_table(await load_k_tables(Stored(stored), card, alpha), card, encoder, alpha, RUN)


@pytest.mark.parametrize(("wanted", "got"), [(0.9, 0.9), (0.91, 0.95), (0.95, 0.95), (0.5, 0.9), (0.97, 0.95)])
async def test_the_next_stricter_table_that_ships_is_used(card: ModelCard, wanted: float, got: float) -> None:
    table, notes = await in_force(card, wanted)
    assert table is not None
    assert (table.alpha, table.source) == (got, f"{card.folder.name}/k_table_{got:g}.json")
    assert bool(notes) is (got < wanted)
    assert all("measured for alpha 0.95, not 0.97" in note for note in notes)


@pytest.mark.parametrize("weights", ["", "0" * 64])
async def test_without_a_table_for_the_encoder_none_is_in_force_and_the_command_is_named(
    card: ModelCard, weights: str
) -> None:
    """Neither Fig. 10, which is CLIP ViT-L/14's alone, nor what ships for another encoder."""
    table, (note,) = await in_force(card, 0.95, EncoderId("another", weights))
    assert table is None
    assert note.startswith("k_table: none counts for mine with this encoder")
    assert "NIRVANA Fig. 10: it was measured with CLIP ViT-L/14" in note
    assert "k_table_0.95.json: it was measured with another encoder" in note
    assert note.endswith(f"only exact repeats are reused; run `{RUN}`")


async def test_the_published_table_counts_for_its_encoder_and_says_that_none_was_measured(card: ModelCard) -> None:
    for path in card.folder.glob("k_table_*.json"):
        path.unlink()
    assert (await in_force(card, 0.97))[0] is None
    table, (note,) = await in_force(card, 0.97, CLIP)
    assert table == FIG_10
    assert note == f"k_table: none measured for mine at alpha 0.97, NIRVANA Fig. 10 is used; run `{RUN}`"


async def test_a_profile_counts_for_its_weights_and_encoder_and_hides_no_other_that_does(card: ModelCard) -> None:
    profile = KTable((Level(10, 0.5),), weights_hash=card.weights_hash, encoder_hash="here", alpha=0.95)
    table, notes = await in_force(card, 0.95, EncoderId("here"), profile)
    assert table is not None
    assert (table.levels, table.source, notes) == (profile.levels, "profile of mine, alpha 0.95", ())
    other_encoder, _ = await in_force(card, 0.95, ENCODER, profile)
    assert other_encoder is not None
    assert other_encoder.source.endswith("k_table_0.95.json")
    old = replace(profile, weights_hash="before")
    table, (note,) = await in_force(card, 0.95, EncoderId("here"), old)
    assert table is None
    assert "profile of mine, alpha 0.95: it was measured with other weights" in note


async def test_a_no_op_model_and_a_replay_that_names_a_table_are_exempt_and_say_so(card: ModelCard) -> None:
    table, notes = await in_force(find_card("noop:"), 0.95)
    assert table is not None
    assert (table.levels, notes) == (FIG_10.levels, ())
    assert table.source == ("NIRVANA Fig. 10, taken for a no-op model although it was measured with CLIP ViT-L/14")
    table, notes = await in_force(card, 0.95, EncoderId("any"), named_table(FIG_10))
    assert table is not None
    assert (table.levels, notes) == (FIG_10.levels, ())
    assert table.source == "NIRVANA Fig. 10, as named, whatever model and encoder it was measured with"


def test_the_command_names_what_was_named() -> None:
    assert profile_command("./my model", "bundled:clip", 0.95) == (
        "afterimage profile --model './my model' --encoder bundled:clip"
    )
    assert (
        profile_command("small", "a/b", 0.9, "large")
        == "afterimage profile --model small --images-from large --encoder a/b"
    )


def test_the_command_measures_the_alpha_that_is_wanted() -> None:
    """A profile counts for its own α alone, and without `--alphas` .9 and .95 are measured."""
    assert profile_command("large", "a/b", 0.97).endswith("--encoder a/b --alphas 0.97")
    command: Any = get_command(app)
    (default,) = (one.default for one in command.commands["profile"].params if one.name == "alphas")
    assert tuple(float(one) for one in default.split(",")) == PROFILED


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
            further = table.steps if path.stem.endswith(f"_t{table.steps}") else 0
            assert path.name == table_file(table, further, pairs=path.name.startswith("pair_"))
            assert (table.model, table.weights_hash, table.encoder_hash) == (name, card.weights_hash, encoder), path
            if table.images_from:
                assert table.images_weights_hash == bundled_cards()[table.images_from].weights_hash, path
    starts = {"large": ("small",), "small": ("large", "small"), "motion": ()}
    expected = {(name, f"{kind}_{alpha}.json") for name, others in starts.items() for alpha in ("0.9", "0.95")
                for kind in ("k_table", *(f"image_k_table_{other}" for other in others))}  # fmt: skip
    expected |= {("motion", f"pair_k_table_{alpha}.json") for alpha in ("0.9", "0.95")}
    assert set(found) == expected | {("small", "image_k_table_large_0.95_t5.json")}
