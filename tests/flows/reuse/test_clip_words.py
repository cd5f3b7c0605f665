"""Words of motion that the encoder never saw: the card of a model of clips names those that it was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shared.models.vocabulary import KNOWN_WORDS
from tests import tiny_families
from tests.flows.conftest import Make
from tests.flows.house import house
from tests.tiny_clips import CARD


@pytest.mark.parametrize("named", [{}, {"words": ["hops", "away"]}, {"other_words": ["hops", "away"]}], ids=str)
async def test_words_of_the_card_are_no_unknown_words(make: Make, tmp_path: Path, named: dict[str, list[str]]) -> None:
    clips = tiny_families.save(tmp_path / "clips", "animatediff")
    (clips / "card.json").write_text(json.dumps(CARD | named))
    settings = make(video=str(clips))
    encoder = shutil.copytree(settings.encoder, tmp_path / "encoder")
    (encoder / KNOWN_WORDS).write_text(json.dumps(["a", "fox", "zyx"]))
    async with house(make(video=str(clips), encoder=str(encoder))) as home:
        found = await home.generate("a fox hops away", modality="video", steps=2, seed=7)
        of_image = await home.generate("a fox hops away", steps=2, seed=7)
    said = "these words are not in the models' training vocabulary: hops, away"
    assert (said in found.job.warnings) == (not named)
    assert ("unknown to the encoder" in found.plan.reason) == ("words" not in named)
    assert said in of_image.job.warnings
