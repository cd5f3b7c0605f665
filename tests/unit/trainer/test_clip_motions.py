"""Words of motions for the pair: only the new words learn, and what they learn is the motions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPModel

from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_png
from services.trainer import clip_motions
from services.trainer.clip_motions import MotionWordsPlan, export_motion_words, train_motion_words
from services.trainer.clip_pair import pair_config
from services.trainer.export import image_processor
from services.trainer.words import Words, train_tokenizer, write_known_words
from shared.models.scenes import WORDINGS, caption, random_scene


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair with random weights whose tokenizer spells the words of motions in pieces."""
    folder = tmp_path_factory.mktemp("pair") / "clip"
    tokenizer = train_tokenizer(folder)
    torch.manual_seed(0)
    CLIPModel(pair_config(Words(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)
    write_known_words(folder / "known_words.json")
    return folder


def test_motions_become_dissimilar_and_nothing_else_changes(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_motions, "CHECKED", 60)
    plan = MotionWordsPlan(steps=60, groups=2, rate=2e-2)
    before = train_motion_words(replace(plan, steps=1, rate=0.0), tmp_path / "before", pair)
    after = train_motion_words(plan, tmp_path / "work", pair)
    export_motion_words(tmp_path / "work", pair, tmp_path / "clip")
    assert after["motion"][1] < before["motion"][1] - 0.1  # medians
    assert after["background_motion"][1] < before["background_motion"][1] - 0.1

    rng = random.Random(2)
    texts = [caption(random_scene(rng), rng.randrange(WORDINGS)) for _ in range(100)]
    image = encode_png(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    halved = CLIPModel.from_pretrained(pair).half()  # as it is shipped
    halved.save_pretrained(pair)
    old, new = Encoder(pair), Encoder(tmp_path / "clip")
    assert old.texts(texts) == new.texts(texts)
    assert old.images([image]) == new.images([image])
    moving = ["a red fox runs to the left in the snow"]
    assert old.texts(moving)[0].vector != new.texts(moving)[0].vector
