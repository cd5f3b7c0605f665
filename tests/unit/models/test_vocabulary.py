import json
from pathlib import Path

import pytest

from shared.models.vocabulary import KNOWN_WORDS, read_known_words, unknown_share, unknown_words


def test_unknown_words_once_in_their_order() -> None:
    known = {"a", "red", "cube", "sun", "set"}
    text = "A red zyx, a cube; Quux zyx at sun-set 3_x"
    assert unknown_words(text, known.__contains__) == ("zyx", "quux", "at", "3", "x")


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("an astronaut on a horse", 1.0),
        ("a wizard in the castle, a castle", 0.5),
        ("a red castle", 0.0),
        ("on the", 0.0),
        ("", 0.0),
    ],
)
def test_the_share_of_unknown_words_leaves_out_those_that_name_nothing(text: str, share: float) -> None:
    known = {"a", "an", "red", "castle"}
    assert unknown_share(text, unknown_words(text, known.__contains__)) == share


@pytest.mark.parametrize(
    "listed", [["red", "ice-cream"], {"words": ["red", "ice-cream"]}, {"words": ["red"], "ignored": ["ice-cream"]}]
)
def test_a_list_beside_the_encoder(tmp_path: Path, listed: object) -> None:
    (tmp_path / KNOWN_WORDS).write_text(json.dumps(listed))
    known = read_known_words(tmp_path)
    assert known is not None
    assert unknown_words("Red ice-cream truck", known.__contains__) == ("truck",)


def test_no_list(tmp_path: Path) -> None:
    assert read_known_words(tmp_path) is None
