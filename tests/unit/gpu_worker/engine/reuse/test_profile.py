"""The forest of a profile: its arrays decide as scikit-learn does; the one that is written is used by the worker."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
from rich.console import Console

from services.cli.profiles import reuse as profiled
from services.cli.profiles.measure import Profiler
from services.cli.profiles.reuse_forest import Recorder, fit_forest, fit_reuse, limits_of
from services.gpu_worker.engine.reuse.block_reuse import blocks_of
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.errors import InvalidRequestError
from shared.domain.types import vector_bytes
from shared.models import find_card
from shared.models.card_lookup import card_for
from shared.models.step_reuse import FILE, LEAST_IMAGES, StepReuse, reuse_from_json
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.engine.conftest import solo, task

BLOCKS, REUSES = 4, 3


def records(count: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    columns = (
        draw.integers(0, BLOCKS, count),
        draw.choice(np.arange(0, 1000, 20), count),
        draw.integers(0, REUSES, count),
        draw.exponential(0.02, count),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def outputs(rows: np.ndarray, seed: int) -> np.ndarray:
    """Changes of the outputs that grow with the block, the age and the noise level."""
    noise = np.random.default_rng(seed).uniform(0.5, 1.5, len(rows))
    grown: np.ndarray = rows[:, 3] * (1 + rows[:, 0]) * (1 + rows[:, 2]) * (0.2 + rows[:, 1] / 1000) * noise
    return grown.astype(np.float64)


def test_the_arrays_decide_as_scikit_learn_does() -> None:
    rows = records(600, 0)
    forest = fit_forest(rows, outputs(rows, 1) <= 0.05)
    found = StepReuse("w", "groups", 0, REUSES, *limits_of(forest, BLOCKS, REUSES))
    assert len(found.times) > 0
    asked = records(1000, 2)
    asked[:, 1] = np.random.default_rng(3).uniform(-10, 1010, len(asked))  # between the trained timesteps as well
    wanted = forest.predict(asked)
    assert 0.2 < wanted.mean() < 0.8
    for block in range(BLOCKS):
        own = asked[:, 0] == block
        given = asked[own]
        decided = found.reused(block, given[:, 1], given[:, 2].astype(np.int64), given[:, 3])
        np.testing.assert_array_equal(decided, wanted[own])


@pytest.mark.parametrize(("change", "reused"), [(-1.0, False), (1e9, True)])
def test_outputs_that_all_changed_alike_need_no_forest(change: float, reused: bool) -> None:
    rows = records(50, 0)
    found = fit_reuse(rows, outputs(rows, 1), change, "w")
    assert found.reused(0, [5.0], np.array([0]), [0.01])[0] == reused


class OneVector:
    """An encoder to which all texts and images are alike."""

    def texts(self, texts: list[str]) -> list[Any]:
        return [SimpleNamespace(vector=vector_bytes(np.full(4, 0.5, dtype=np.float32))) for _ in texts]

    images = texts


def test_a_profile_is_written_beside_the_weights_and_used(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled, "CHANGES", (0.3,))
    monkeypatch.setattr(profiled, "MOST", (1,))
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder / "large", folder)
    settings = Settings(device="cpu", data_dir=tmp_path, step_reuse="auto")
    family = load_family(find_card(str(folder)))
    console = Console(file=StringIO(), record=True, width=120)
    profiler = Profiler(family, OneVector(), None, [], 6)  # type: ignore[arg-type]
    found = profiled.profile_reuse(profiler, 2, settings, tmp_path, console)
    assert "2 images are too few to show that quality stays; use --reuse 256" in console.export_text()
    assert found.quality["clip_ratio"] == pytest.approx(1.0)
    assert found.quality["reused"] > 0
    assert reuse_from_json(json.loads((tmp_path / FILE).read_text())).key == found.key

    with structlog.testing.capture_logs() as said:
        for _service in range(3):
            assert card_for(str(folder), settings).step_reuse is None
    assert [(each["event"], each["model"]) for each in said] == [("blocks are not reused", "large")]
    profiled.store_beside(found, family.card, console)
    card = card_for(str(folder), settings)
    with structlog.testing.capture_logs() as said:
        reusing = load_family(card)
    assert ("reuse was judged on few images", 2) in [(each["event"], each.get("images")) for each in said]
    assert isinstance(reusing, PipelineFamily)
    assert not np.array_equal(solo(reusing, task()).latent, solo(family, task()).latent)
    # bits must not depend on the batch, so nothing is reused
    with structlog.testing.capture_logs() as said:
        invariant = load_family(card, batch_invariant=2)
    assert said == []
    plain = load_family(find_card(str(folder)), batch_invariant=2)
    np.testing.assert_array_equal(solo(invariant, task()).latent, solo(plain, task()).latent)

    profiled.profile_reuse(replace(profiler, family=reusing), 1, settings, tmp_path, console)
    assert reusing._reuse is not None
    assert reusing._reuse.policy is card.step_reuse


def test_tensors_of_one_batch_are_recorded_at_a_time(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = load_family(find_card(str(tiny_folder / "large")))
    assert isinstance(family, PipelineFamily)
    profiler = Profiler(family, OneVector(), None, [], 3, max_rows=1)  # type: ignore[arg-type]
    kept: list[int] = []

    def forget(recorder: Recorder) -> None:
        kept.append(len(recorder._steps))
        recorder._steps.clear()

    monkeypatch.setattr(Recorder, "forget", forget)
    profiled.recorded(profiler, list(profiler.pairs(2, 0, "reuse")), 1, lambda: None)
    assert kept == [len(blocks_of(family.denoiser))] * 2


def test_settings_that_break_a_bound_are_not_taken(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {(0.01, 1): 1.0, (0.01, 2): 0.98, (0.03, 1): 1.0, (0.03, 2): 0.995, (0.03, 4): 0.9, (0.1, 1): 0.5}
    made: list[tuple[float, int]] = []
    changes = iter(profiled.CHANGES)

    def fitted(*given: Any) -> StepReuse:
        return StepReuse(str(next(changes, 0.0)), "", 0, 4, np.array([]), np.zeros((1, 1, 1)))

    def quality(profiler: Any, pairs: Any, plain: Any, found: StepReuse, on_step: Any) -> profiled.Quality:
        made.append((float(found.weights_hash), found.most))
        return profiled.Quality(1, ratios[made[-1]], 0.0, 0.1 * made[-1][1])

    monkeypatch.setattr(profiled, "fit_reuse", fitted)
    monkeypatch.setattr(profiled, "quality_of", quality)
    profiler = Profiler(load_family(find_card(str(tiny_folder / "large"))), OneVector(), None, [], 6)  # type: ignore[arg-type]
    found = profiled.choose(profiler, [], [], np.zeros((1, 4), dtype=np.float32), np.zeros(1), lambda: None)
    assert made == list(ratios)
    assert (found.weights_hash, found.most) == ("0.03", 2)
    assert found.quality["clip_ratio"] == 0.995


def test_models_whose_blocks_cannot_be_reused_are_refused() -> None:
    card = find_card("noop:")
    with pytest.raises(InvalidRequestError, match=r"reuse: needs a model of family unet, sd3, flux, sana"):
        profiled.check_reuse(card, Settings())
    with pytest.raises(
        InvalidRequestError, match=r"reuse: needs batch_invariant 0, because no block is reused with it \(got '4'\)"
    ):
        profiled.check_reuse(find_card("bundled:large"), Settings(batch_invariant=4))


def test_the_bundled_large_model_ships_a_forest_that_kept_the_bounds() -> None:
    card = card_for("bundled:large", Settings(step_reuse="auto"))
    assert card.step_reuse is not None
    assert card.step_reuse.most > 0
    quality = card.step_reuse.quality
    assert card.step_reuse.images == quality["images"] >= LEAST_IMAGES
    assert quality["clip_ratio"] >= 0.99
    assert quality["attributes"] >= -0.01
