"""Other wordings for the motion model: what they say, how their states are matched, and that the encoder learns."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import CLIPTextModel, CLIPTokenizer

from services.trainer.text_to_video.wordings import SPARE, WordingsPlan, export_wordings, matched, train_wordings
from services.trainer.words import LENGTH, Words
from shared.models.card_lookup import BUNDLED
from shared.models.scenes import MOTIONS, Scene, clip_caption, free_wording, with_motion

IDS = st.lists(st.integers(0, 9), min_size=LENGTH, max_size=LENGTH)


@given(IDS, IDS)
def test_each_token_gets_one_of_the_others_and_equal_texts_get_their_own(own: list[int], caption: list[int]) -> None:
    assert sorted(matched(own, caption, end=0)[0]) == list(range(LENGTH))
    assert matched(own, own, end=0) == (list(range(LENGTH)), [1.0] * LENGTH)


def test_what_is_left_out_stands_in_the_padding() -> None:
    words = Words(CLIPTokenizer.from_pretrained(BUNDLED / "motion" / "tokenizer"))
    caption, own = words.ids("a small red fox hops in the snow"), words.ids("a red fox hops in the snow")
    places, weights = matched(own, caption, words.end)
    missing = [(n, place) for n, place in enumerate(places) if caption[place] != own[n]]
    ((padding, word),) = missing
    assert words.tokenizer.decode([caption[word]]).strip() == "small"
    assert own[padding] == words.end
    assert weights == [1.0] * LENGTH
    back, weights = matched(caption, own, words.end)
    assert weights == [SPARE if n == word else 1.0 for n in range(LENGTH)]
    assert back[word] == padding


def test_other_wordings_name_the_rest_of_the_scene() -> None:
    rng = random.Random(0)
    for motion in MOTIONS:
        scene = with_motion(Scene("fox", count=2, colour="red", size="small", background="snow"), motion)
        found = {free_wording(scene, 0, rng, share=1.0) for _ in range(40)}
        assert len(found) > 10
        assert all("two" in text and "red foxes" in text for text in found)
        assert clip_caption(scene) not in found
        assert all("small" in text for text in found) == (motion in ("stay", "left", "right"))


def test_the_text_encoder_learns_other_wordings_and_keeps_captions(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUNDLED / "motion", model)
    fresh = CLIPTextModel(CLIPTextModel.from_pretrained(model / "text_encoder").config)
    torch.manual_seed(0)
    fresh.save_pretrained(model / "text_encoder")  # one that knows none of the wordings yet
    before = _errors(model, model)
    train_wordings(WordingsPlan(steps=30, batch=8, rate=3e-3), model, tmp_path / "work")
    train_wordings(WordingsPlan(steps=100, batch=8, rate=3e-3), model, tmp_path / "work")
    export_wordings(model, tmp_path / "work", tmp_path / "target")
    after = _errors(model, tmp_path / "target")
    assert after["other"] < 0.8 * before["other"]
    assert after["captions"] < 0.5 * before["other"]
    kept = {path.relative_to(tmp_path / "target").parts[0] for path in (tmp_path / "target").rglob("*.json")}
    assert kept == {"card.json", "model_index.json", "scheduler", "text_encoder", "tokenizer", "unet", "vae"}


@torch.no_grad()
def _errors(teacher: Path, student: Path) -> dict[str, float]:
    """Mean squared error of the states of one prompt in two wordings, and of one caption."""
    words = Words(CLIPTokenizer.from_pretrained(teacher / "tokenizer"))
    caption, own = words.ids("a small red fox moves up in the snow"), words.ids("a red fox flies up in a snowy forest")
    towers = [
        CLIPTextModel.from_pretrained(one / "text_encoder", dtype=torch.float32).eval() for one in (teacher, student)
    ]
    wanted, kept, found = [
        tower(input_ids=torch.tensor([ids])).last_hidden_state[0]
        for tower, ids in ((towers[0], caption), (towers[1], caption), (towers[1], own))
    ]
    return {
        "other": float((found - wanted[matched(own, caption, words.end)[0]]).square().mean()),
        "captions": float((kept - wanted).square().mean()),
    }
