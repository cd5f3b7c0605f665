from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.replay.simulated.thresholds import k_table, matched, nearest_earlier
from shared.domain.errors import ModelError
from shared.models.k_table import FIG_10
from tests.unit.replay.house import load_of, topics


def test_matched_thresholds_let_the_same_share_pass() -> None:
    theirs = np.random.default_rng(0).uniform(0.3, 1.0, 5000).astype(np.float32)
    ours = theirs**3  # another range, the same order
    table, words = matched(FIG_10, "the other", theirs, ours)
    for before, after in zip(FIG_10.levels, table.levels, strict=True):
        assert after.k == before.k
        assert after.min_similarity == pytest.approx(before.min_similarity**3, abs=2e-3)
        assert (ours > after.min_similarity).mean() == pytest.approx((theirs > before.min_similarity).mean(), abs=1e-3)
        assert f"{before.min_similarity:.3f} → {after.min_similarity:.3f}" in words


def test_nearest_earlier_is_the_first_listed_neighbour() -> None:
    load = load_of(*topics(700))
    nearest = nearest_earlier(load.vectors, load.text_of)
    listed = load.neighbours.similarities[1:, 0]
    assert len(nearest) == 699
    assert nearest[listed > 0] == pytest.approx(listed[listed > 0], abs=1e-6)
    assert (nearest[listed < 0] <= 0.65 + 1e-6).all()


def test_the_table_follows_the_encoder() -> None:
    assert "bundled large" in k_table("", "bundled:clip", 0.9)[1]
    assert k_table("", "minilm", 0.9)[0] is k_table("nirvana", "bundled:clip", 0.9)[0] is FIG_10
    with pytest.raises(ModelError, match="no such file"):
        k_table("nowhere.json", "minilm", 0.9)


@pytest.mark.parametrize(
    ("text", "said"), [("{}\n{}\n", "Invalid JSON"), ('{"alpha": "' + "x" * 999 + '"}', "levels: Field required$")]
)
def test_a_file_that_holds_no_table_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "k_table_x.json").write_text(text)
    with pytest.raises(ModelError, match=rf"k_table_x\.json': not a k_table_\*\.json: {said}"):
        k_table(str(tmp_path / "k_table_x.json"), "minilm", 0.9)
