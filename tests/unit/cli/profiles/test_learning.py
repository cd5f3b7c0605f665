"""The learned bound's fit: labels, calibration, and arrays that equal scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from services.cli.profiles import learned as fitting
from services.cli.profiles.held_out import calibrated, labels, oracle, outcome
from services.cli.profiles.learned import LEARNED, SIMILARITY, learned_table
from services.cli.profiles.learning import Data, data_of, kind_means, recogniser, text_pairs, too_few, with_all_levels
from services.cli.profiles.pairs import CLIPS, FURTHER, ScenePair, changed, further_pairs, scene_pairs
from services.cli.profiles.report import report_section
from services.retriever.bounds import LATENT, Near
from services.retriever.learned import COPYING, LearnedBound, allowances, features, probabilities
from services.retriever.relation import jaccard, normalised
from shared.models.learned_table import MEASURES, LearnedTable, learned_from_json, learned_to_json
from shared.models.scenes import Scene, clip_caption, with_motion

KS = (1, 2, 3, 4)
LAST_SAFE = {
    "paraphrase": 4,
    "colour": 3,
    "style": 3,
    "light": 1,
    "position": 1,
    "unrelated": 0,
    "background_motion": 1,
}


def similarity(pair: ScenePair) -> float:
    return 0.5 + jaccard(normalised(pair.before_text), normalised(pair.after_text)) / 2


def records(pairs: Sequence[ScenePair], steps: int = 5, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a model that loses .3 of the contrast beyond the last safe K of each kind of change, with noise."""
    rng, found = np.random.default_rng(seed), []
    noise = {"contrast": 50.0, "saturation": 50.0, "sharpness": 5.0, "likeness": 0.0}
    for pair in pairs:
        for k in (0, *(k * steps // 5 for k in KS)):
            kind = {"reworded": "colour"}.get(pair.kind, pair.kind)
            lost = 0.3 * (k * 5 // steps > LAST_SAFE.get(kind, 2))
            own = noise | {"contrast": 50.0 * (1 - lost + rng.normal(0, 0.05))}
            found.append(
                {
                    "pair": pair.number, "kind": pair.kind, "k": k, "prompts": [pair.before_text, pair.after_text],
                    "changed": list(changed(pair)), "similarity": similarity(pair), "right": {}, "right_from_noise": {},
                    "asked_for": list(changed(pair)), "score": 0.3, "score_from_noise": 0.3, "measures": own,
                    "measures_from_noise": noise,
                }
            )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def data() -> Data:
    return data_of([{5: records(list(scene_pairs(200, seed=1)))}])


def test_further_pairs_repeat_reword_and_change_several_things() -> None:
    pairs = list(further_pairs(60, seed=3))
    assert [pair.kind for pair in pairs[:3]] == list(FURTHER)
    for pair in pairs:
        count = {"same": (0, 0), "reworded": (1, 1), "several": (2, 4)}[pair.kind]
        assert count[0] <= len(changed(pair)) <= count[1]
        assert (pair.before_text == pair.after_text) == (pair.kind == "same")
    assert pairs[:6] == list(further_pairs(6, seed=3))


def test_a_label_is_that_of_the_kind_and_not_of_one_image(data: Data) -> None:
    kinds = tuple(sorted(set(data.kinds)))
    kept = labels(data, kinds, allowances(0.95))[5]
    for kind, row in zip(data.kinds, kept, strict=True):
        assert row.sum() == LAST_SAFE.get(kind, 2)
    means, errors = kind_means(data, kinds)[5]
    assert means.shape == errors.shape == (len(kinds), len(KS), len(MEASURES))
    assert np.diff(means, axis=1).max() <= 1e-12  # monotone over K
    assert errors[..., 2].mean() == pytest.approx(0.05 / 20**0.5, rel=0.2)


def test_copying_is_bounded_between_topics_alone(data: Data) -> None:
    like = {5: data.change[5].copy()}
    like[5][..., COPYING] = -0.2
    copied = Data(data.near, data.kinds, data.topic, like, data.ks, data.noise, data.measured, data.records)
    kept = labels(copied, tuple(sorted(set(data.kinds))), allowances(0.95))[5]
    assert not kept[data.topic].any()
    assert kept[~data.topic].any()


def test_pairs_without_records_of_a_t_borrow_from_equal_noise_levels() -> None:
    both = [{10: records(list(scene_pairs(20, 1)), 10), 5: records(list(scene_pairs(20, 1)), 5)}]
    few = [{5: records(list(scene_pairs(10, 2)), 5)}]
    found = data_of([*both, *few])
    assert found.ks == {10: (2, 4, 6, 8), 5: (1, 2, 3, 4)}
    assert (found.measured[10].sum(), found.measured[5].sum()) == (20, 30)
    assert np.array_equal(found.change[10][20:], found.change[5][20:])
    apart = data_of([*both, *few], borrow=False)
    assert np.isnan(apart.change[10][20:]).all()
    kinds = tuple(sorted(set(found.kinds)))
    of_twenty = data_of(both)
    assert np.array_equal(kind_means(apart, kinds)[10][0], kind_means(of_twenty, kinds)[10][0])
    assert "needs 100 pairs or more (got 30)" in too_few(found)


def test_few_steps_copy_at_least_as_much_as_the_reference_does() -> None:
    data = data_of([{10: records(list(scene_pairs(40, 1)), 10), 5: records(list(scene_pairs(40, 1)), 5)}])
    data.change[10][..., COPYING], data.change[5][..., COPYING] = -0.3, -0.1
    means = kind_means(data, tuple(sorted(set(data.kinds))))
    assert means[5][0][..., COPYING] == pytest.approx(-0.3)
    data.change[5][..., COPYING] = -0.4
    assert kind_means(data, tuple(sorted(set(data.kinds))))[5][0][..., COPYING] == pytest.approx(-0.4)


def test_levels_between_the_measured_ones_lie_between() -> None:
    change = np.array([[[-0.1], [-0.3]]])
    ks, between, error = with_all_levels((10, 20), 50, change, np.full((1, 2, 1), 0.01))
    assert ks == (5, 10, 15, 20)
    assert between[0, :, 0].tolist() == pytest.approx([-0.05, -0.1, -0.2, -0.3])
    assert set(error.flat) == {0.01}


def test_calibration_keeps_the_share_of_wrong_plans() -> None:
    rng = np.random.default_rng(0)
    score = rng.uniform(-1, 1, (2000, 1))
    kept = score + rng.normal(0, 0.3, score.shape) > 0
    margin = calibrated(score[:1000], kept[:1000])
    found = outcome((score[1000:, 0] >= margin).astype(int), kept[1000:], (25,), 50)
    assert 0.93 < found.coverage < 0.98
    assert calibrated(score[:10], kept[:10]) > 1  # too few pairs prove nothing
    best = outcome(oracle(kept, (25,)), kept, (25,), 50)
    assert best.coverage == pytest.approx(0.95)
    assert best.saved > found.saved


def test_compiled_arrays_equal_scikit_learn(data: Data) -> None:
    near, kinds = text_pairs(200, lambda pairs: [similarity(pair) for pair in pairs])
    found = recogniser(near, kinds)
    arrays = found.kinds, found.knots, found.words, *found.compiled()
    table = learned_from_json(learned_to_json(LearnedTable("m", "w", "e", 50, 0.95, *arrays, levels={})))
    x, _ = features(data.near, table.knots, table.places)
    expected, _ = found.shares(data.near)
    assert np.abs(probabilities(table, x) - expected).max() < 1e-6


def test_a_bound_is_fitted_stored_and_reported(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TEXT_PAIRS", 400)
    about = {"model": "m", "weights_hash": "w", "encoder_hash": "e", "codec": "fp16"}
    table = learned_table(data, about, 50, lambda pairs: [similarity(pair) for pair in pairs])
    figures = table.report["steps"]["5"]
    assert figures["methods"][LEARNED]["coverage"] >= 0.95
    assert figures["methods"][LEARNED]["saved"] > figures["methods"][SIMILARITY]["saved"]
    assert figures["methods"][LEARNED]["of_oracle"] > 0.8
    assert figures["kinds"]["light"]["kept_up_to"] == 1
    assert "Learned bound, on held-out pairs" in report_section(table.report)
    again = learned_table(data, about, 50, lambda pairs: [similarity(pair) for pair in pairs])
    x = features(data.near, table.knots, table.places)[0]
    assert np.array_equal(probabilities(table, x), probabilities(again, x))
    bound, pair = LearnedBound(table), next(pair for pair in scene_pairs(40, 7) if pair.kind == "colour")
    near = Near(LATENT, similarity(pair), "edit", pair.before_text, pair.after_text)
    assert bound.latest([near], 5) == [3]
    assert bound.noise(5)


def test_a_bound_of_clips_recognises_another_motion_where_similarity_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TEXT_PAIRS", 400)
    pairs = [*scene_pairs(200, 1, CLIPS), *further_pairs(30, 1, CLIPS)]
    assert {pair.kind for pair in pairs} == {*CLIPS.edits, *FURTHER}
    about = {"model": "m", "weights_hash": "w", "encoder_hash": "e", "codec": "fp16", "frames": 16}
    table = learned_table(data_of([{5: records(pairs)}]), about, 5, lambda some: [0.98] * len(some))
    assert set(table.kinds) >= {"motion", "background_motion", "paraphrase"}
    scenes = with_motion(Scene("fox"), "left"), with_motion(Scene("fox"), "left", "drift")
    texts = [clip_caption(one, wording) for one, wording in ((scenes[0], 0), (scenes[1], 0), (scenes[0], 1))]
    drift, reworded = (Near(LATENT, 0.98, "edit", texts[0], text) for text in texts[1:])
    first, second = LearnedBound(table).latest([drift, reworded], 5)
    assert first < second
