"""Realignment on a reused start: does it keep the quality at a later K? (after Chorus, arXiv 2604.04451)

    python -m bench.realignment --count 96 --steps 5 --ks 1 2 3 --settings off old=1.5 added=1,first=1 logits=4
    python -m bench.realignment --figures-only …          (score and print the images that exist)

The second prompt of each scene pair of `afterimage profile` starts from the first prompt's latent at K, once per
setting. The reference is the second prompt from noise with the same seed at T = 50. Images and states are stored under
--work, so a killed run continues and further settings or pairs reuse what exists.

A setting is `off` or a list of these words, joined by commas; n, o and u are the model's outputs for the new prompt,
the source's prompt and the empty prompt, g the guidance:

    old=S        n + S·(n − o): the old prompt takes the place of the unconditional row; as many rows as without
    mixed=M      the unconditional row's encoding is M parts the old prompt's and 1 − M parts the empty prompt's
    added=W      u + g·(n − u) + W·(n − o): a third row
    further=W    the new prompt's encoding is moved by W times its difference from the old one's, token by token
    logits=F     cross-attention of the new prompt: F times the weight for the tokens of changed words
    values=F     cross-attention of the new prompt: F times the values of these tokens
    guidance=F   F times the guidance, for comparison: it knows nothing of the old prompt
    first=N      all of it in the first N steps only

Rule, written before the final run (`pays`), which uses pairs that no choice of settings has seen. A setting pays if at
one T all of this holds:

- The K table of the edits (α = .95) has a later level than `off`, or one of its levels at a similarity lower by .05.
- At this level the look keeps its bounds of .9, and all attributes right is not shown to be rarer than with `off`.
- Paraphrases keep .95 of their CLIP score at this level.
- A start at this level runs fewer rows than the latest start that is safe without the setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.realigned.family import RealignedFamily, Realignment
from bench.realigned.images import Plan, Store, generate
from bench.realigned.scores import LOOK, Scores, batched, score, similarities
from bench.traced.frontier_figures import bootstrapped, interval
from services.cli.profiles.pairs import ScenePair, asked_for, scene_pairs
from services.retriever.profile import UNRELATED, ProfileRow, build_table, quality_of
from shared.models.card_lookup import find_card
from shared.models.confidence import ratio_bounds
from shared.models.quality import BOUNDS, Measures
from shared.runtime.progress import Remaining

ALPHA = 0.95
AT_ONCE = 32
"""Pairs that share batches."""


def profile_rows(
    pairs: Sequence[ScenePair], plan: Plan, setting: str, scores: Scores, similarity: Mapping[int, float]
) -> list[ProfileRow]:
    """Return the rows of Algorithm 2 for one setting."""
    rows = []
    for pair in pairs:
        noise, asked = scores[pair.number, f"noise-{plan.steps}"], asked_for(pair)
        for k in plan.ks:
            own = scores[pair.number, plan.name(k, setting)]
            rows.append(
                ProfileRow(
                    k, similarity[pair.number], own["clip"], noise["clip"],
                    all(own["right"][name] for name in asked) if asked else None,
                    all(noise["right"][name] for name in asked) if asked else None,
                    pair.kind, _measures(own), _measures(noise),
                )
            )  # fmt: skip
    return rows


def _measures(one: Mapping[str, Any]) -> Measures:
    return Measures(**{name: one[name] for name in (*LOOK, "likeness")})


def figures_of(pairs: Sequence[ScenePair], plan: Plan, scores: Scores) -> list[dict[str, Any]]:
    """Return one row per setting and K: the edits alone (neither paraphrases nor unrelated pairs), and paraphrases."""
    edits = [pair for pair in pairs if asked_for(pair) and pair.kind != UNRELATED]
    same = [pair for pair in pairs if not asked_for(pair)]

    def shares(name: str, what: str) -> Any:
        return np.array([float(_shown(pair, scores[pair.number, name]["right"], what)) for pair in edits])

    def clips(some: Sequence[ScenePair], name: str) -> list[float]:
        return [scores[pair.number, name]["clip"] for pair in some]

    rows, noise = [], f"noise-{plan.steps}"
    for k, setting in sorted(plan.images()):
        own, off = plan.name(k, setting), plan.name(k, "off")
        measured = quality_of(profile_rows(edits, Plan(plan.steps, [k], [setting]), setting, scores, _zeros(edits)))
        rows.append(
            {
                "steps": plan.steps, "k": k, "setting": setting, "pairs": len(edits),
                "rows": Realignment.read(setting).rows(plan.steps - k),
                "clip_ratio": (
                    sum(clips(edits, own)) / sum(clips(edits, noise)),
                    *ratio_bounds(clips(edits, own), clips(edits, noise)),
                ),
                **{what: bootstrapped(shares(own, what)) for what in ("changed", "kept", "all")},
                **{
                    f"{what}_more": bootstrapped(shares(own, what) - shares(off, what))
                    for what in ("changed", "kept", "all")
                },
                **{f"{what}_from_noise": float(shares(noise, what).mean()) for what in ("changed", "kept", "all")},
                **{
                    name: (measure.value, measure.bound)
                    for name in (*LOOK, "copying")
                    if (measure := getattr(measured, name))
                },
                "paraphrases_clip_ratio": _ratio(clips(same, own), clips(same, noise)),
            }
        )  # fmt: skip
    return rows


def _zeros(pairs: Sequence[ScenePair]) -> dict[int, float]:
    return {pair.number: 0.0 for pair in pairs}


def _ratio(values: Sequence[float], references: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return sum(values) / sum(references), ratio_bounds(values, references)[0]


def _shown(pair: ScenePair, judged: Mapping[str, bool], what: str) -> bool:
    """Return whether the changed attributes, the others or all of them are right."""
    asked = asked_for(pair)
    return all(value for name, value in judged.items() if what == "all" or (name in asked) == (what == "changed"))


def tables_of(
    pairs: Sequence[ScenePair], plan: Plan, scores: Scores, similarity: Mapping[int, float]
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return setting → `edits` (all but unrelated pairs) and `all` → levels (K, similarity) of the K table."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for setting in plan.settings:
        rows = profile_rows(pairs, plan, setting, scores, similarity)
        edits = [row for row in rows if row.kind != UNRELATED]
        found[setting] = {
            name: [
                (level.k, round(level.min_similarity, 4))
                for level in build_table(some, alpha=ALPHA, steps=plan.steps).levels
            ]
            for name, some in (("edits", edits), ("all", rows))
        }
    return found


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "T", "K", "setting", "rows", "CLIP ratio", "changed", "… − off", "kept", "all", "… − off", *LOOK, "copying",
        "paraphrases",
    ]  # fmt: skip
    return table(
        heads,
        [
            [
                row["steps"], row["k"], row["setting"], row["rows"], f"{row['clip_ratio'][0]:.3f}",
                f"{row['changed'][0]:.3f}", interval(row["changed_more"]), f"{row['kept'][0]:.3f}",
                f"{row['all'][0]:.3f}", interval(row["all_more"]), *(f"{row[name][0]:.3f}" for name in LOOK),
                f"{row['copying'][0]:.3f}",
                "–" if row["paraphrases_clip_ratio"] is None else f"{row['paraphrases_clip_ratio'][0]:.3f}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def pays(
    rows: Sequence[Mapping[str, Any]], tables: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], setting: str
) -> str:
    """Apply the rule above at one T. Return the reason for no, and nothing for yes."""
    off, own = dict(tables["off"]["edits"]), dict(tables[setting]["edits"])
    last = max(off, default=0)
    gained = [k for k, least in own.items() if k > last or least <= off.get(k, -math.inf) - 0.05]
    if not gained:
        return f"no later level: {sorted(own.items())} against {sorted(off.items())}"
    row = next(row for row in rows if row["setting"] == setting and row["k"] == max(gained))
    for name in LOOK:
        if row[name][1] is None or row[name][1] < BOUNDS[name].limit:
            return f"K = {row['k']} gained, {name} {row[name][0]:.3f} (bound {row[name][1]:.3f})"
    if row["all_more"][2] < 0:
        return f"K = {row['k']} gained, all attributes {interval(row['all_more'])} against off"
    if row["paraphrases_clip_ratio"] is not None and row["paraphrases_clip_ratio"][1] < ALPHA:
        return f"K = {row['k']} gained, CLIP ratio of paraphrases {row['paraphrases_clip_ratio'][0]:.3f}"
    before = max((k for k in off if k < row["k"]), default=0)
    if row["rows"] >= 2 * (row["steps"] - before):
        return f"K = {row['k']} gained, at {row['rows']} rows instead of {2 * (row['steps'] - before)}"
    return ""


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--count", type=int, default=96, help="scene pairs")
    parser.add_argument("--kinds", nargs="+", default=(), help="kinds of change; all when not given")
    parser.add_argument("--steps", type=int, default=5, help="T of the reused runs")
    parser.add_argument("--ks", type=int, nargs="+", default=(1, 2, 3), help="start steps")
    parser.add_argument("--settings", nargs="+", default=("off",))
    parser.add_argument("--seed", type=int, default=18, help="seed of the scene pairs")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--work", type=Path, default=Path("out/realignment"), help="folder of images and states")
    parser.add_argument("--figures-only", action="store_true", help="generate nothing")
    asked = parser.parse_args(given)
    quiet()
    torch.set_num_threads(asked.threads)
    on, card, encoder = machine(), find_card(asked.model), open_encoder("bundled:clip")
    plan = Plan(asked.steps, asked.ks, tuple(dict.fromkeys(("off", *asked.settings))))
    for setting in plan.settings:
        Realignment.read(setting)
    pairs = _pairs(asked.count, asked.seed, asked.kinds)
    folder = asked.work / f"{card.name}-{asked.seed}"
    store = Store(folder)
    if not asked.figures_only:
        family, progress = RealignedFamily(card), Remaining("pairs", len(pairs))
        for some in batched(pairs, AT_ONCE):
            generate(family, some, plan, store)
            progress.advance(len(some))
    pairs = [pair for pair in pairs if _whole(pair, plan, store)]
    scores, similarity = score(pairs, plan, store, encoder, folder / "scores.jsonl"), similarities(pairs, encoder)
    rows, tables = figures_of(pairs, plan, scores), tables_of(pairs, plan, scores, similarity)
    print(report(rows))
    verdicts = {}
    for setting in plan.settings:
        verdicts[setting] = "" if setting == "off" else pays(rows, tables, setting) or "pays"
        print(f"\n{setting}: edits {tables[setting]['edits']}; all {tables[setting]['all']}; {verdicts[setting]}")
    settings = settings_of(asked) | {
        "pairs": len(pairs), "alpha": ALPHA, "weights_hash": card.weights_hash, "encoder_hash": encoder.hash,
    }  # fmt: skip
    figures = {"points": rows, "tables": tables, "verdicts": verdicts}
    record(f"realignment_t{plan.steps}", figures, settings, on=on, folder=asked.out)


def _pairs(count: int, seed: int, kinds: Sequence[str]) -> list[ScenePair]:
    """Return the first `count` pairs of these kinds of change."""
    some = (pair for pair in scene_pairs(20 * count, seed) if not kinds or pair.kind in kinds)
    return list(islice(some, count))


def _whole(pair: ScenePair, plan: Plan, store: Store) -> bool:
    names = ["noise", f"before-{plan.steps}", *(plan.name(k, setting) for k, setting in plan.images())]
    return all(store.has(pair, f"{name}.png") for name in names)


if __name__ == "__main__":
    main()
