"""Strange words are put into captions without touching the rest, and what they cost is measured on exported models."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.trainer.evaluation.strange_words import COUNTS, STRANGE, measure_strange_words, strange_captions
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.rendering.renderer import Renderer
from services.trainer.words import FILLERS
from shared.models.card_lookup import BUNDLED
from shared.models.scenes import WORDINGS, caption, known_words
from tests.unit.trainer.conftest import SPRITES


def test_captions_keep_their_words_in_order_and_get_so_many_strange_ones() -> None:
    scenes = balanced_scenes(12, seed=300)
    for count in COUNTS:
        asked = strange_captions(scenes, count)
        assert asked == strange_captions(scenes, count)
        for i, (scene, text) in enumerate(zip(scenes, asked, strict=True)):
            words = text.split(" ")
            assert [word for word in words if word not in STRANGE] == caption(scene, i % WORDINGS).split(" ")
            assert sum(word in STRANGE for word in words) == count
    assert not {*known_words(), *FILLERS} & {*STRANGE}


def test_it_is_measured_on_what_a_user_opens(tmp_path: Path, renderer: Renderer) -> None:
    assert isinstance(renderer, Renderer)  # or it is skipped, where there are no sprites
    shutil.copytree(SPRITES, tmp_path / "work" / "sprites")
    found = measure_strange_words(["small"], tmp_path / "work", BUNDLED, tmp_path / "out", count=1, steps=2)
    assert set(found["small"]["by_words"]) == {"0", "1", "2", "4"}
    assert all(scores["object"] in (0.0, 1.0) for scores in found["small"]["by_words"].values())
    assert (tmp_path / "out" / "strange-words.json").exists()
