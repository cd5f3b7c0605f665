"""The codec of a captured state: by its share of the run, for every T that may start from it."""

from __future__ import annotations

import json
from pathlib import Path

from services.gpu_worker.jobs.codecs import CODECS
from shared.models.card_lookup import bundled_cards, find_card
from shared.models.k_table import NoProfiles
from shared.models.state_codecs import (
    FILE,
    SMALLEST_FIRST,
    CodecChoice,
    CodecLevel,
    choice_to_json,
    codec_of,
    load_codecs,
    shipped_codecs,
)
from tests import tiny

CHOICE = CodecChoice(
    "large",
    "weights",
    (
        CodecLevel(50, 10, "residual-4x4"), CodecLevel(50, 25, "residual"), CodecLevel(50, 45, "residual-1bit"),
        CodecLevel(5, 1, "residual-4x4"), CodecLevel(5, 2, "residual-1bit"), CodecLevel(5, 4, "residual-4x4"),
    ),
)  # fmt: skip


def test_a_state_takes_the_codec_of_the_next_measured_level_of_every_t() -> None:
    assert [CHOICE.at(k, 50) for k in (5, 10, 11, 20, 25, 40, 45)] == [
        "residual-4x4", "residual-4x4", "residual-1bit", "residual-1bit", "residual", "residual-1bit", "residual-1bit",
    ]  # fmt: skip
    assert [CHOICE.at(k, 5) for k in (1, 2, 3, 4)] == [
        "residual-4x4",
        "residual-1bit",
        "residual-1bit",
        "residual-1bit",
    ]
    assert CHOICE.at(1, 10) == "residual-4x4"
    assert CHOICE.at(49, 50) == "fp16"  # later than everything measured
    assert CodecChoice("large", "weights", ()).at(10, 50) == "fp16"


async def test_the_choice_beside_the_weights_counts_for_these_weights_alone(tmp_path: Path) -> None:
    folder = tiny.build(tmp_path, clip=False) / "large"
    card = find_card(str(folder))
    assert shipped_codecs(card) is None
    for weights, found in ((card.weights_hash, "residual"), ("others", "fp16")):
        choice = CodecChoice("large", weights, (CodecLevel(50, 25, "residual", 100, 111.0, {"int4": "no"}),))
        (folder / FILE).write_text(json.dumps(choice_to_json(choice)))
        assert codec_of("auto", card, 10, 50) == found
        assert await load_codecs(NoProfiles(), card) == (choice if found == "residual" else None)
    assert codec_of("int8", card, 10, 50) == "int8"
    (folder / FILE).write_text("[]")
    assert shipped_codecs(card) is None


def test_the_shipped_choices_name_codecs_of_this_version() -> None:
    for card in bundled_cards().values():
        choice = shipped_codecs(card)
        if choice is not None:
            assert {level.codec for level in choice.levels} <= set(CODECS)
            assert all(level.pairs >= (100 if level.steps < 50 else 24) for level in choice.levels)
    assert set(SMALLEST_FIRST) < set(CODECS)
    assert shipped_codecs(bundled_cards()["large"]) is not None
