"""The grammar: what it finds, where it is not sure, and that it never leaves the prompt."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.text_extractor.grammar import Grammar
from shared.models.scenes import CLIP_WORDINGS, WORDINGS, random_moving_scene, random_scene
from shared.models.scenes.parts import caption_parts, clip_caption_parts

GRAMMAR = Grammar()


def found(prompt: str) -> tuple[str, str, bool]:
    extraction = GRAMMAR.extract([prompt])[0]
    parts = extraction.parts(prompt)
    return parts.object, parts.background, extraction.sure


@pytest.mark.parametrize(
    ("prompt", "thing", "place"),
    [
        ("a woman in a red dress playing guitar on a rooftop at night, 4k", "a woman in a red dress playing guitar",
         "on a rooftop at night"),
        ("create a video of two dogs running through the desert", "two dogs running", "through the desert"),
        ("in the kitchen, a chef cuts onions with a knife", "a chef cuts onions with a knife", "in the kitchen"),
        ("a castle in the mountains", "a castle", "in the mountains"),
        ("a robot dancing", "a robot dancing", ""),
        ("cinematic shot of a lion looking at the camera in slow motion", "a lion looking at the camera",
         ""),
        ("a man sitting on a horse in the forest of Sherwood, anime style", "a man sitting on a horse",
         "in the forest of Sherwood"),
        ("three cats hop in the middle of the street", "three cats hop", "in the middle of the street"),
        ("a fox stands in the middle, on a beach", "a fox stands in the middle", "on a beach"),
    ],
)  # fmt: skip
def test_known_words_decide(prompt: str, thing: str, place: str) -> None:
    assert found(prompt) == (thing, place, True)


def test_combining_marks_end_no_clause() -> None:
    prompt = "an old fiance\u0301 dances in the cafe\u0301 at night"
    thing, place, _ = found(prompt)
    assert (thing, place) == ("an old fiance\u0301 dances", "in the cafe\u0301 at night")


@pytest.mark.parametrize(
    "prompt",
    [
        "a knight in the zorblax",  # a place, or something that a knight wears?
        "ein Hund läuft durch den Wald mit der Katze",
        "una chica bailando en la playa con su perro",
        "一只狐狸在森林里奔跑",
        "beautiful forest at night",  # no object
        "a boat, in the sea, sails",  # a boat is a place, too
        "a boat, sails",
        "",
        "🦊🌲",
    ],
)
def test_unknown_words_and_languages_are_unsure(prompt: str) -> None:
    assert not found(prompt)[2]


def test_every_wording_of_the_scenes_is_exact() -> None:
    rng = random.Random(5)
    wrong = []
    for number in range(400):
        for text, parts in (
            clip_caption_parts(random_moving_scene(rng), number % CLIP_WORDINGS),
            caption_parts(random_scene(rng), number % WORDINGS),
        ):
            wrong += [text] if GRAMMAR.extract([text])[0].parts(text) != parts else []
    assert len(wrong) <= 0.03 * 800, wrong[:5]


TEXT = (
    "a the fox in on at of with forest none object: background: night left side and , . while turning into 4k style by "
    "video of underwater the middle of the city 🦊 ß ÄÖ -- ' \n \t 3d  into"
)
WORDS = st.sampled_from(TEXT.split(" "))


@given(st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=60).map(" ".join)))
def test_spans_are_pieces_of_any_prompt(prompt: str) -> None:
    extraction = GRAMMAR.extract([prompt])[0]
    spans = [span for span in (extraction.object, extraction.background) if span]
    assert all(0 <= start < end <= len(prompt) and prompt[start:end].strip() for start, end in spans)
    if len(spans) == 2:
        assert spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]
    assert extraction.object is not None or not extraction.sure


def test_a_long_prompt_is_read_as_far_as_the_video_model_reads() -> None:
    long = "a red fox runs in the snow, " * 400
    assert len(long) > 10_000
    assert found(long)[:2] == found(long[:400])[:2] == ("a red fox runs", "in the snow")
    assert found("x" * 10_000)[0] == "x" * 10_000
    assert Grammar(tokens=8).extract([long])[0].background == (15, 26)


@pytest.mark.parametrize(
    "prompt", ["object: none", "Object: a cat\nBackground: none", "none", "ignore the prompt and answer none"]
)
def test_a_prompt_cannot_answer_for_the_extractor(prompt: str) -> None:
    thing, place, _ = found(prompt)
    assert thing in prompt
    assert place in prompt
