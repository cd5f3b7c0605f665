"""The four measures of quality over a trace's hits, against the same requests from noise (shared.models.quality)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from bench.measuring.judging import BATCH, Verdict, pixels_of
from bench.measuring.recording import table
from bench.traced.closed_loop import Drawn
from load.sessions import Prompt
from services.embedder.encoder import Encoder
from shared.domain.types import Relation, Vector, vector_from
from shared.models.quality import BOUNDS, Measures, compare, likeness, look, spread

Pictures = Mapping[int, bytes]


def quality_of(
    rows: Sequence[Prompt],
    answers: Mapping[int, Drawn],
    pictures: tuple[Pictures, Pictures],
    verdicts: tuple[Mapping[int, Verdict], Mapping[int, Verdict]],
    encoder: Encoder,
) -> dict[str, dict[str, Any] | None]:
    """Return value, 95 % one-sided bound and count of each measure, and whether the bound keeps its limit.

    pictures, verdicts: those with the cache, and those from noise. Copying counts hits that are no edits; variety the
    prompts of which one user had several images with different seeds.
    """
    of_jobs = {one.job: index for index, one in answers.items() if one.job}
    hits = [index for index, one in answers.items() if one.hit and index in pictures[1]]
    sides = [[_measures(index, *side) for index in hits] for side in zip(pictures, verdicts, strict=True)]
    for place, index in enumerate(hits):
        source = pictures[0].get(of_jobs.get(answers[index].source_job, -1))
        if source is not None and answers[index].relation != Relation.EDIT:
            for side, images in zip(sides, pictures, strict=True):
                like = likeness(pixels_of(images[index]), pixels_of(source))
                side[place] = replace(side[place], likeness=like)
    quality = compare(*sides)
    sets = _sets_of_seeds(rows, answers, pictures[1])
    several = (_spreads(sets, images, encoder) for images in pictures)
    quality = replace(quality, variety=compare(*several).variety)
    return {
        name: None if measured is None else {**asdict(measured), "holds": bound.holds(measured)}
        for name, bound in BOUNDS.items()
        for measured in [getattr(quality, name)]
    }


def _measures(index: int, pictures: Pictures, verdicts: Mapping[int, Verdict]) -> Measures:
    verdict = verdicts[index]
    shown = all(verdict.right.values()) if verdict.right else None
    return replace(look(pixels_of(pictures[index])), score=max(verdict.clip, 0.0), shown=shown)


def _sets_of_seeds(rows: Sequence[Prompt], answers: Mapping[int, Drawn], noise: Pictures) -> list[list[int]]:
    """Return the images of each prompt of one user and size that has several; exact repeats are no second image."""
    sets: dict[tuple[object, ...], list[int]] = {}
    for index, one in answers.items():
        if not one.exact and index in noise:
            row = rows[index]
            sets.setdefault((row.user, row.prompt, row.width, row.height), []).append(index)
    return [some for some in sets.values() if len({answers[index].seed for index in some}) > 1]


def _spreads(sets: Sequence[Sequence[int]], pictures: Pictures, encoder: Encoder) -> list[Measures]:
    numbers = [index for some in sets for index in some]
    found: dict[int, Vector] = {}
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        images = encoder.images([pictures[index] for index in some])
        found |= {index: vector_from(one.vector) for index, one in zip(some, images, strict=True)}
    return [Measures(spread=spread([found[index] for index in some])) for some in sets]


def by_relation(answers: Mapping[int, Drawn]) -> dict[str, dict[str, Any]]:
    """Return images, share of hits, steps run, and images by K of T, for each relation; without exact repeats."""
    groups: dict[str, list[Drawn]] = {}
    for one in answers.values():
        if not one.exact:
            groups.setdefault(one.relation, []).append(one)
    return {
        name: {
            "images": len(some),
            "hit_rate": fmean(one.hit for one in some),
            "steps_run": fmean(one.steps_run for one in some),
            "k_of_t": {
                f"{k} of {t}": n for (k, t), n in sorted(Counter((one.start_step, one.run_of) for one in some).items())
            },
        }
        for name, some in sorted(groups.items())
    }


def similarity_by_k(answers: Mapping[int, Drawn]) -> dict[str, float]:
    """Return the mean similarity of the hits that started at each K of T."""
    groups: dict[tuple[int, int], list[float]] = {}
    for one in answers.values():
        if one.hit:
            groups.setdefault((one.run_of, one.start_step), []).append(one.similarity)
    return {f"{k} of {t}": fmean(some) for (t, k), some in sorted(groups.items())}


def report(figures: Mapping[str, Any]) -> str:
    """Return relations, similarity by K, and the measures of quality as Markdown."""
    relations = [
        [name or "–", one["images"], one["hit_rate"], round(one["steps_run"], 2),
         ", ".join(f"{k}: {n}" for k, n in one["k_of_t"].items())]
        for name, one in figures["by_relation"].items()
    ]  # fmt: skip
    measures = [
        [name, one["value"], "–" if one["bound"] is None else one["bound"],
         f"{'≤' if BOUNDS[name].at_most else '≥'} {BOUNDS[name].limit:g}", "yes" if one["holds"] else "no",
         one["count"]]
        for name, one in figures["quality"].items() if one
    ]  # fmt: skip
    return "\n\n".join([
        table(["relation", "images", "hit rate", "steps run", "K of T: images"], relations),
        table(["K of T", "similarity"], list(figures["similarity_by_k"].items())),
        table(["hits against noise", "value", "95 % bound", "limit", "holds", "n"], measures),
    ])  # fmt: skip
