"""The replay at equal measured quality: which tables apply, what their cells say of a start, and a tiny run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.replays.clip_equal import cell_of, kept, own_tables
from services.replay.results.figures import Run
from services.replay.simulated.decisions import nothing_decided
from shared.models.k_table import FIG_10, Cell, KTable, table_to_json
from shared.models.quality import Measured, Quality


def cell(k: int, low: float, high: float, attributes: float) -> Cell:
    quality = Quality(attributes=Measured(attributes, attributes, 9), fidelity=Measured(0.98, 0.97, 9))
    return Cell(k, low, high, 9, 1.0, 1.0, quality=quality)


WHOLE = KTable((), 10, cells=(cell(1, 0.9, 1.0, 0.99), cell(1, 0.4, 0.88, 0.7)))
PAIRS = KTable((), 10, cells=(cell(5, 0.8, 1.0, 0.9), cell(3, 1.0, 1.0, 0.96), cell(3, 0.3, 0.95, 0.8)))


def test_own_tables_apply_to_their_weights_and_encoder_and_have_pairs_of_the_same_steps(tmp_path: Path) -> None:
    base = replace(FIG_10, weights_hash="w", encoder_hash="e", encoder_weights="", alpha=0.9)
    files = {
        "k_table_0.9.json": replace(base, steps=10),
        "k_table_0.9_t50.json": base,
        "k_table_0.9_t25.json": replace(base, steps=25, encoder_hash="other"),
        "k_table_0.95.json": replace(base, steps=10, alpha=0.95),
        "pair_k_table_0.9.json": replace(base, steps=10),
        "pair_k_table_0.9_t50.json": replace(base, weights_hash="other"),
    }
    for name, one in files.items():
        (tmp_path / name).write_text(json.dumps(table_to_json(one)))
    found = [
        (one.alpha, one.steps, pairs and pairs.steps, why_not)
        for one, pairs, why_not in own_tables(tmp_path, "w", "e", 0.9)
    ]
    assert found == [(0.9, 10, 10, ""), (0.9, 25, None, "measured with another encoder"), (0.9, 50, None, "")]


def test_a_start_has_the_quality_of_the_band_that_covers_it() -> None:
    assert cell_of(PAIRS.cells, 3, 0.9999) == PAIRS.cells[1]  # a level begins just below its cell
    assert cell_of(PAIRS.cells, 2, 0.97) == PAIRS.cells[2]
    assert cell_of(PAIRS.cells, 4, 0.97) == PAIRS.cells[0]
    assert cell_of(PAIRS.cells, 3, 0.1) is None
    assert cell_of(PAIRS.cells, 6, 1.0) is None


def test_quality_is_the_mean_over_the_counted_requests() -> None:
    made = replace(
        nothing_decided(5),
        start_step=np.array([3, 0, 1, 3, 0], np.int16),
        similarity=np.array([0, 0, 0.95, 1, 0], np.float32),
        second=np.array([-1, -1, -1, 0, -1], np.int32),
    )
    run = Run("p", "", False, False, 1, made, 1.0, 1.0, None)
    found = kept(run, 1, WHOLE, PAIRS)
    assert found["attributes"] is not None
    np.testing.assert_allclose(found["attributes"], (1 + 0.99 + 0.96 + 1) / 4)
    unmeasured = replace(made, similarity=np.zeros(5, np.float32))
    assert kept(replace(run, decisions=unmeasured), 1, WHOLE, PAIRS) == {"attributes": None, "fidelity": None}
