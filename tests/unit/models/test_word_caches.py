"""Tokenizers lose their cache of words, wherever a service loads one: it would keep words of prompts until the process
ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from services.embedder.encoder import Encoder
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from services.segmenter.models.clipseg import ClipSeg
from shared.models.borders import read_tokenizer
from shared.models.card_lookup import BUNDLED, find_card
from shared.models.word_caches import keeping_no_words
from tests.tiny import remembers_words
from tests.tiny_segmenters import tiny_clipseg


def of_sam3(folder: Path) -> Any:
    pytest.importorskip("torchvision")
    from services.segmenter.models.sam3 import Sam3
    from tests.tiny_sam3 import tiny_sam3

    return Sam3(tiny_sam3(folder))._processor.tokenizer


def of_the_tracker(folder: Path) -> Any:
    pytest.importorskip("torchvision")
    from services.segmenter.models.sam3 import Sam3Tracker
    from tests.tiny_sam3 import tiny_tracker

    return Sam3Tracker(tiny_tracker(folder))._processor.tokenizer


def of_a_worker(_: Path) -> Any:
    family = load_family(find_card("bundled:small"))
    assert isinstance(family, PipelineFamily)
    return family.pipeline.tokenizer


LOADED: dict[str, Callable[[Path], Any]] = {
    "embedder": lambda _: Encoder(BUNDLED / "clip")._tokenizer,
    "text extractor": lambda _: read_tokenizer(BUNDLED / "extractor"),
    "segmenter": lambda folder: ClipSeg(tiny_clipseg(folder))._processor.tokenizer,
    "SAM 3": of_sam3,
    "its tracker": of_the_tracker,
    "worker": of_a_worker,
}


@pytest.mark.parametrize("folder", ["clip", "extractor"])
def test_as_they_come_they_remember(folder: str) -> None:
    assert remembers_words(Tokenizer.from_file(str(BUNDLED / folder / "tokenizer.json")))


@pytest.mark.parametrize("service", LOADED)
def test_those_of_a_service_remember_nothing(service: str, tmp_path: Path) -> None:
    assert not remembers_words(LOADED[service](tmp_path))


def test_what_was_read_before_is_forgotten() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED / "clip")
    before = tokenizer("wolverine")["input_ids"]
    model = keeping_no_words(tokenizer).backend_tokenizer.model
    model.end_of_word_suffix = "?"
    assert tokenizer("wolverine")["input_ids"] != before


@pytest.mark.parametrize("model", [models.BPE(), models.Unigram()])
def test_both_kinds_with_a_cache_have_the_switch(model: models.Model) -> None:
    assert hasattr(Tokenizer(model).model, "_resize_cache")


def test_models_without_a_cache_stay_as_they_are() -> None:
    tokenizer = Tokenizer(models.WordPiece())
    assert keeping_no_words(tokenizer) is tokenizer
    assert keeping_no_words(None) is None
