"""Training data of the text extractor, and training runs of a few steps."""

import random
from pathlib import Path

import pytest

from services.text_extractor.marking import BorderLlama
from services.trainer.extraction import training
from services.trainer.extraction.training import ExtractorPlan, export_extractor, judge_extractor, train_extractor
from services.trainer.extraction.wordings import Wordings
from services.trainer.extraction.wordnet import Words, read_words
from services.trainer.training import runs
from shared.domain.errors import ConfigurationError
from shared.models.borders import reading, targets

WORDS = Words(
    beings=("fox", "old man"), things=("ball", "box"), body=("eye",), garments=("hat",), held=("bicycle",),
    places=("forest", "living room", "Paris"), acts=("run", "carry", "make", "sit", "die"), adjectives=("red", "odd"),
)  # fmt: skip


def test_borders_of_wordings_are_whole_words() -> None:
    rng, wordings, seen = random.Random(0), Wordings(WORDS), set[tuple[bool, bool]]()
    for _ in range(500):
        one = wordings.sample(rng)
        seen.add((one.object is None, one.background is None))
        for span in filter(None, (one.object, one.background)):
            piece = one.text[slice(*span)]
            assert piece
            assert piece == piece.strip(" ,")
            assert one.text[max(span[0] - 1, 0) : span[0]] in ("", " ")
        if one.object and one.background:
            assert one.object[1] <= one.background[0] or one.background[1] <= one.object[0]
    assert {(False, False), (False, True), (True, False)} <= seen


def test_without_wordnet_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="wordnet-base"):
        read_words(tmp_path)


def test_a_run_continues_and_its_model_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "read_words", lambda _: WORDS)
    monkeypatch.setattr(training, "VOCABULARY", 300)
    monkeypatch.setattr(training, "TEXTS", 50)
    monkeypatch.setattr(training, "JUDGED", 8)
    monkeypatch.setattr(training, "SIZES", {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1})
    for steps in (2, 4):
        train_extractor(ExtractorPlan(steps=steps, batch=4), tmp_path, tmp_path)
        assert runs.steps_done(tmp_path / "extractor.pt") == steps
    export_extractor(tmp_path, tmp_path / "tiny")
    assert set(judge_extractor(tmp_path / "tiny", tmp_path)) == {"object", "background", "both"}
    extractor = BorderLlama(tmp_path / "tiny", "tiny", 77)
    prompts = ["a red fox runs in the forest", "", "🦊", "old man " * 500]
    together = extractor.extract(prompts)
    assert together == [extractor.extract([prompt])[0] for prompt in prompts]


def test_captions_of_held_out_wordings_are_not_trained_on() -> None:
    from shared.models.scenes.parts import wording_held_out

    assert [number for number in range(8) if wording_held_out(number)] == [3, 7]


def test_a_long_wording_keeps_the_borders_that_are_read() -> None:
    tokenizer = training.learned_tokenizer(Wordings(WORDS), 0)
    text = "fox " * 50
    one = reading(tokenizer, text, 10)
    assert targets(one, ((0, 3), (150, 153))) == (0, 0, 10, 10)
