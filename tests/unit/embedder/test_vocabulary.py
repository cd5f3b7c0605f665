import json
from pathlib import Path

import pytest

from services.embedder.remembered import Remembered
from services.embedder.vocabulary import KNOWN_WORDS, read_known_words, unknown_words


def test_unknown_words_once_in_their_order() -> None:
    known = {"a", "red", "cube", "sun", "set"}
    text = "A red zyx, a cube; Quux zyx at sun-set 3_x"
    assert unknown_words(text, known.__contains__) == ("zyx", "quux", "at", "3", "x")


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


def test_remembered_forgets_the_least_recently_used() -> None:
    remembered: Remembered[int] = Remembered(2)
    remembered.put("a", 1)
    remembered.put("b", 2)
    assert remembered.get("a") == 1
    remembered.put("c", 3)
    assert (remembered.get("a"), remembered.get("b"), remembered.get("c")) == (1, None, 3)
    nothing: Remembered[int] = Remembered(0)
    nothing.put("a", 1)
    assert len(nothing) == 0
