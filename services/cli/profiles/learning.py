"""Fit the learned bound on a profile's rows: the pairs, the kinds of change, and what each kind costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from services.cli.profiles.pairs import ScenePair, changed, further_pairs, scene_pairs
from services.retriever.bounds import LATENT, Near
from services.retriever.learned import COPYING, Bools, features
from services.retriever.profile import UNRELATED
from services.retriever.relation import CLOSE_SIMILARITY, CLOSE_WORDS, jaccard, normalised
from shared.domain.types import vector_from
from shared.models.learned_table import Floats
from shared.models.scenes import EDITS
from shared.models.scenes.modality import IMAGES, Grammar

if TYPE_CHECKING:
    from services.embedder.encoder import Encoder

KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of the related pairs' similarities at which the effect of similarity may change."""
LEAST_PAIRS = 100
"""Pairs below which no bound is fitted: a single wrong plan would then decide the calibration."""
LEAST_OF_KIND = 8
TEXT_PAIRS = 3000
"""Pairs of prompts, without images, that the kinds of change are recognised from."""
TEXT_SEED = "texts"
"""Seed of those pairs: none of them is a pair that is measured."""
Similarities = Callable[[Sequence[ScenePair]], Sequence[float]]
"""Pairs → the similarity of each."""
PENALTY = 1.0
"""Inverse strength C of the penalty."""


@dataclass(frozen=True)
class Data:
    """The pairs of profiles, in the order of `near`."""

    near: list[Near]
    kinds: list[str]
    topic: Bools
    """(pairs,): by their words and similarity the second prompt is no edit of the first, so copying is bounded."""
    change: Mapping[int, Floats]
    """T → (pairs, levels, measures): change against the reference, as a share of the reference's mean."""
    ks: Mapping[int, tuple[int, ...]]
    noise: Mapping[int, Floats]
    """T → (pairs, measures): the same for runs of T from noise; nan where not measured."""
    measured: Mapping[int, Bools]
    """T → (pairs,): False where `change` was borrowed from another T, or is nan."""
    records: list[Mapping[int, Mapping[int, Mapping[str, Any]]]]
    """Each pair's records: T → K → record."""

    def rows(self, which: Sequence[int] | npt.NDArray[np.int_]) -> Data:
        """Return these pairs alone."""
        return Data(
            [self.near[n] for n in which],
            [self.kinds[n] for n in which],
            self.topic[which],
            {steps: values[which] for steps, values in self.change.items()},
            self.ks,
            {steps: values[which] for steps, values in self.noise.items()},
            {steps: values[which] for steps, values in self.measured.items()},
            [self.records[n] for n in which],
        )


Records = Mapping[int, Sequence[Mapping[str, Any]]]
"""T → the records of its rows.jsonl."""


def data_of(profiles: Sequence[Records], borrow: bool = True) -> Data:
    """Return the pairs of one or more profiles of the same models.

    borrow: where a pair has no records of some T, it takes the changes of a T whose levels have the same noise levels.
    That needs equal runs: not where few steps began without the prompt. Without it, such changes are nan.
    """
    ks: dict[int, tuple[int, ...]] = {}
    pairs: dict[tuple[int, int], dict[int, dict[int, Mapping[str, Any]]]] = {}
    for profile, records in enumerate(profiles):
        for steps, rows in records.items():
            ks[steps] = tuple(sorted({row["k"] for row in rows if row["k"]}))
            for row in rows:
                if "changed" in row and "contrast" in row.get("measures", {}):  # not from an earlier version
                    pairs.setdefault((profile, row["pair"]), {}).setdefault(steps, {})[row["k"]] = row
    pairs = {  # a killed run leaves a T out
        name: of for name, of in sorted(pairs.items()) if of.keys() == profiles[name[0]].keys()
    }
    first = [next(iter(next(iter(of.values())).values())) for of in pairs.values()]
    near = [Near(LATENT, row["similarity"], "", *row["prompts"]) for row in first]
    scale = np.array([_values(row, "_from_noise") for row in first]).mean(axis=0)
    scale[COPYING] = 1.0
    unknown = [float("nan")] * len(scale)

    def changes(steps: int, wanted: Sequence[int]) -> Floats:
        rows = [[of.get(steps, {}).get(k) for k in wanted] for of in pairs.values()]
        found: Floats = np.array([[_change(row) if row else unknown for row in of] for of in rows]) / scale
        return found

    change = {steps: changes(steps, ks[steps]) for steps in sorted(ks, reverse=True)}
    noise = {steps: changes(steps, (0,))[:, 0] for steps in change}
    measured = {steps: np.asarray(np.isfinite(values).all(axis=(1, 2))) for steps, values in change.items()}
    if borrow:
        _borrow(change, ks, measured)
    topic = np.array([_topic(one) for one in near])
    kinds = [kind_of(row["kind"], row["changed"]) for row in first]
    return Data(near, kinds, topic, change, ks, _some(noise), measured, [*pairs.values()])


def _borrow(change: Mapping[int, Floats], ks: Mapping[int, Sequence[int]], measured: Mapping[int, Bools]) -> None:
    levels = {steps: [k / steps for k in ks[steps]] for steps in change}
    for steps, values in change.items():
        for other in change:
            missing = np.isnan(values).any(axis=(1, 2)) & measured[other]
            if levels[other] == levels[steps]:
                values[missing] = change[other][missing]


def _some(noise: Mapping[int, Floats]) -> dict[int, Floats]:
    return {steps: values for steps, values in noise.items() if not np.isnan(values).all()}


def _values(row: Mapping[str, Any], of: str) -> list[float]:
    right, measures = row["right" + of], row["measures" + of]
    looks = [measures[name] for name in ("contrast", "saturation", "sharpness")]
    shown = all(right[name] for name in row["changed"]) if right else True
    return [max(row["score" + of], 0.0), float(shown), *looks, -measures["likeness"]]


def _change(row: Mapping[str, Any]) -> list[float]:
    own, noise = _values(row, ""), _values(row, "_from_noise")
    return [value - against for value, against in zip(own, noise, strict=True)]


def kind_of(kind: str, changed: Sequence[str]) -> str:
    """Return the kind of change. A change in another wording counts as that change, the same prompt as a paraphrase."""
    if not changed:
        return EDITS[0]
    return changed[0] if kind == "reworded" else kind


def _topic(near: Near) -> bool:
    words = jaccard(normalised(near.prompt_before), normalised(near.prompt_after))
    return words <= CLOSE_WORDS and near.similarity <= CLOSE_SIMILARITY


def too_few(data: Data) -> str:
    """Return why the pairs are too few for a learned bound; empty if they suffice."""
    count = Counter(data.kinds)
    if len(data.near) < LEAST_PAIRS:
        return f"needs {LEAST_PAIRS} pairs or more (got {len(data.near)})"
    rare = [kind for kind, pairs in count.items() if pairs < LEAST_OF_KIND]
    return f"needs {LEAST_OF_KIND} pairs of each kind (fewer of: {', '.join(rare)})" if rare else ""


def kind_means(data: Data, kinds: Sequence[str]) -> dict[int, tuple[Floats, Floats]]:
    """Return for each T the mean change of each kind, and its standard error: twice (kinds, levels, measures).

    Means are monotone over K (isotonic regression). Errors come from the spread of single images about the mean of
    their kind, pooled over the kinds.

    At few steps, an image may start from a state of the reference's T, whose first steps saw a prompt: copying counts
    as the more of the two, at equal noise levels.
    """
    of_kind = np.array([kinds.index(kind) for kind in data.kinds])
    found = {}
    for steps, every in data.change.items():
        known = np.isfinite(every).all(axis=(1, 2))
        change, own = every[known], of_kind[known]
        count = np.maximum(np.bincount(own, minlength=len(kinds)), 1)
        means = np.stack([change[own == kind].mean(axis=0) for kind in range(len(kinds))])
        spread = np.sqrt(((change - means[own]) ** 2).sum(axis=0) / max(len(own) - len(kinds), 1))
        flat = np.moveaxis(means, 1, 0).reshape(len(data.ks[steps]), -1)
        smooth = [isotonic_regression(one, increasing=False) for one in flat.T]
        monotone = np.moveaxis(np.stack(smooth, axis=1).reshape(-1, len(kinds), means.shape[2]), 0, 1)
        found[steps] = monotone, spread / np.sqrt(count)[:, None, None]
    most = max(found)
    levels = [0.0, *(k / most for k in data.ks[most])]
    for steps, (mean, _) in found.items():
        for own, reference in zip(mean[..., COPYING], found[most][0][..., COPYING], strict=True):
            at = np.interp([k / steps for k in data.ks[steps]], levels, [0.0, *reference])
            own[:] = np.minimum(own, at)
    return found


def with_all_levels(
    ks: Sequence[int], steps: int, change: Floats, error: Floats
) -> tuple[tuple[int, ...], Floats, Floats]:
    """Return K at every tenth of T, with change and error linear between the measured K; no change at K = 0.

    change, error: (kinds, levels, measures).
    """
    every = sorted({*ks, *(k for k in range(1, max(ks) + 1) if k * 10 % steps == 0)})

    def between(values: Floats, first: Floats) -> Floats:
        flat = np.moveaxis(np.concatenate([first, values], axis=1), 1, 0).reshape(len(ks) + 1, -1)
        found = np.stack([np.interp(every, [0, *ks], one) for one in flat.T], axis=1)
        return np.moveaxis(found.reshape(len(every), len(values), -1), 0, 1)

    return tuple(every), between(change, np.zeros_like(change[:, :1])), between(error, error[:, :1])


# ---- kinds of change, recognised from prompts ----


@dataclass(frozen=True)
class Recogniser:
    """A fitted classifier of kinds of change."""

    kinds: tuple[str, ...]
    knots: tuple[float, ...]
    words: tuple[str, ...]
    model: Pipeline

    def of(self, near: Sequence[Near]) -> tuple[Floats, Floats]:
        """Return the features, and each candidate's share of unknown words."""
        return features(near, self.knots, {word: n for n, word in enumerate(self.words)})

    def shares(self, near: Sequence[Near]) -> tuple[Floats, Floats]:
        """Return each candidate's probabilities of the kinds, and its share of unknown words."""
        found, unknown = self.of(near)
        return self.model.predict_proba(found), unknown

    def compiled(self) -> tuple[Floats, Floats]:
        """Return weights (features, kinds) and bias (kinds,) of the same probabilities."""
        scaler, logistic = self.model[0], self.model[1]
        weights = logistic.coef_.T / scaler.scale_[:, None]
        return weights, logistic.intercept_ - scaler.mean_ @ weights


def text_pairs(count: int, similarities: Similarities, grammar: Grammar = IMAGES) -> tuple[list[Near], list[str]]:
    """Return pairs of prompts and their kinds, three further ones for each ten."""
    pairs = [*scene_pairs(count, TEXT_SEED, grammar), *further_pairs(count * 3 // 10, TEXT_SEED, grammar)]
    values = similarities(pairs)
    near = [
        Near(LATENT, value, "", pair.before_text, pair.after_text) for value, pair in zip(values, pairs, strict=True)
    ]
    return near, [kind_of(pair.kind, changed(pair)) for pair in pairs]


def recogniser(near: Sequence[Near], kinds: Sequence[str], penalty: float = PENALTY) -> Recogniser:
    """Fit the classifier on pairs of prompts alone: a profile knows the kind of each change, and no image is needed."""
    related = [one.similarity for one, kind in zip(near, kinds, strict=True) if kind != UNRELATED]
    knots = sorted({round(float(knot), 4) for knot in np.quantile(related, KNOTS)})
    prompts = {text for one in near for text in (one.prompt_before, one.prompt_after)}
    words = tuple(sorted({word for prompt in prompts for word in normalised(prompt).split()}))
    found, _ = features(near, knots, {word: n for n, word in enumerate(words)})
    model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=300)).fit(found, list(kinds))
    return Recogniser(tuple(map(str, model.classes_)), tuple(knots), words, model)


def similarities_by(encoder: Encoder) -> Similarities:
    """Return a function that compares the prompts of each pair."""

    def of(pairs: Sequence[ScenePair]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(pairs), 128):
            part = pairs[start : start + 128]
            sides = [[pair.before_text for pair in part], [pair.after_text for pair in part]]
            before, after = ([vector_from(one.vector) for one in encoder.texts(side)] for side in sides)
            found += [float(one @ other) for one, other in zip(before, after, strict=True)]
        return found

    return of


def similarities_like(data: Data, seed: int = 0) -> Similarities:
    """Return a function that draws a pair's similarity from the measured ones of its kind: the similarity of a prompt
    and an image that was never generated is not known."""
    rng = np.random.default_rng(seed)
    kinds = np.array(data.kinds)
    known = {kind: [data.near[n].similarity for n in np.flatnonzero(kinds == kind)] for kind in set(data.kinds)}
    return lambda pairs: [float(rng.choice(known.get(kind_of(pair.kind, changed(pair)), [0.0]))) for pair in pairs]
