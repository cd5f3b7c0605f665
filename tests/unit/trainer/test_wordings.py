"""Other wordings for the motion model: what they say, how their states are matched, and that the encoder learns."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import CLIPTextModel, CLIPTokenizer

from services.trainer.text_to_video import wordings
from services.trainer.text_to_video.wordings import SPARE, WordingsPlan, _seen, export_wordings, matched, train_wordings
from services.trainer.training.runs import load_checkpoint
from services.trainer.words import LENGTH, Words
from shared.models.card_lookup import BUNDLED
from shared.models.scenes import MOTIONS, Scene, clip_caption, free_wording, with_motion
from shared.models.scenes.free_wordings import VERBS
from shared.models.scenes.motion import MOVE_SMALL

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
        sized = {"small" in text for text in found}
        if motion not in ("grow", "shrink"):  # these decide the size
            assert sized == ({True, False} if motion in MOVE_SMALL else {True})


PLURALS = {
    "goes to the left": "go to the left",
    "flies up": "fly up",
    "is rising": "are rising",
    "rising": "rising",
    "crosses to the right": "cross to the right",
    "becomes tiny": "become tiny",
    "hurries to the left": "hurry to the left",
}


@pytest.mark.parametrize("verb", PLURALS)
def test_verbs_agree_with_the_number_of_objects(verb: str) -> None:
    motion = next(motion for motion, verbs in VERBS.items() if verb in verbs)
    for count, said in ((1, verb), (2, PLURALS[verb])):
        scene = with_motion(Scene("fox", count=count), motion)
        texts = {free_wording(scene, 0, random.Random(seed), share=1.0) for seed in range(200)}
        assert any(f" {said} " in text for text in texts)


def test_no_plural_has_a_verb_in_the_singular() -> None:
    singular = {verb.split()[0] for verbs in VERBS.values() for verb in verbs if not verb.split()[0].endswith("ing")}
    for motion in MOTIONS:
        scene = with_motion(Scene("fox", count=3), motion)
        for seed in range(200):
            words = free_wording(scene, 0, random.Random(seed), share=1.0).split()
            assert words[words.index("foxes") + 1] not in singular | {"goe", "flie", "crosse", "hurrie"}


def test_the_text_encoder_learns_other_wordings_and_keeps_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUNDLED / "motion", model)
    (model / "state_codecs.json").write_text("{}")
    config = CLIPTextModel.from_pretrained(model / "text_encoder").config
    torch.manual_seed(0)
    CLIPTextModel(config).save_pretrained(model / "text_encoder")  # one that knows none of the wordings yet
    before = _errors(model, model)
    train_wordings(WordingsPlan(steps=15, batch=8, rate=3e-3), model, tmp_path / "work")
    (checkpoint,) = (tmp_path / "work").glob("motion-wordings-*.pt")
    state = load_checkpoint(checkpoint)
    assert state is not None
    assert state["step"] == 15
    steps, losses = itertools.count(), wordings._losses
    monkeypatch.setattr(wordings, "_losses", lambda *given: (next(steps), losses(*given))[1])
    train_wordings(WordingsPlan(steps=50, batch=8, rate=3e-3), model, tmp_path / "work")
    assert next(steps) == 35  # the second run went on after the first
    export_wordings(model, tmp_path / "work", tmp_path / "target")
    after = _errors(model, tmp_path / "target")
    assert after["other"] < 0.8 * before["other"]
    assert after["captions"] < 0.5 * before["other"]
    kept = {path.name for path in (tmp_path / "target").iterdir()}
    assert kept == {"card.json", "model_index.json", "scheduler", "text_encoder", "tokenizer", "unet", "vae"}


@pytest.mark.parametrize(
    ("wording", "caption", "other"),
    [
        ("a red fox runs to the left in a snowy forest", "… in a snowy field", "… in a forest"),
        ("a red fox hops in the snow", "a small red fox hops in the snow", "a small red fox stays in the snow"),
        (
            "a white ghost floats up in a house",
            "a small white ghost rises in a room",
            "a small white ghost grows in a city",
        ),
    ],
)
def test_the_shipped_model_reads_another_wording_as_its_caption(wording: str, caption: str, other: str) -> None:
    start = wording.partition(" in a ")[0]
    said, *read = _shipped_states([wording, caption.replace("…", start), other.replace("…", start)])
    near, far = (float((said.mean(0) - states.mean(0)).square().mean()) for states in read)
    assert near < 0.6 * far  # it was above .8 before the wordings were taught


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


@torch.no_grad()
def _shipped_states(prompts: list[str]) -> torch.Tensor:
    model = BUNDLED / "motion"
    words = Words(CLIPTokenizer.from_pretrained(model / "tokenizer"))
    reads = CLIPTextModel.from_pretrained(model / "text_encoder").float().eval()
    states: torch.Tensor = reads(input_ids=torch.tensor([words.ids(prompt) for prompt in prompts])).last_hidden_state
    return states @ _seen(model)
