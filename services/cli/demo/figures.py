"""The figures of a demo: totals, steps saved by relation, variety, and few steps without a cache; summary.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.cli.demo.session import Prompt
from services.cli.display.sources import chosen_model, chosen_prompt
from shared.client import Picture
from shared.domain.types import Plan, PlanSource, Vector
from shared.models.quality import spread

UNEVEN = 0.1
"""Largest difference between the shares of steps and of seconds saved that is shown without a warning."""


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of a row's prompt and of its three images."""

    prompt: Vector
    picture: Vector
    without: Vector
    few: Vector


@dataclass(frozen=True)
class Row:
    """One prompt, generated with the cache, without it, and without it in few steps."""

    prompt: Prompt
    picture: Picture
    seconds: float
    without: Picture
    seconds_without: float
    few: Picture
    seconds_few: float
    embeddings: Embeddings

    @property
    def exact(self) -> bool:
        return self.picture.plan.source is PlanSource.EXACT

    @property
    def steps(self) -> int:
        """T of the request, and of the run without the cache."""
        return self.picture.job.request.steps

    @property
    def run_steps(self) -> int:
        """T of the run with the cache."""
        return self.picture.plan.run_steps(self.steps)


@dataclass(frozen=True)
class Totals:
    pictures: int
    steps_total: int
    steps_run: int
    seconds_with_cache: float
    seconds_without_cache: float

    @property
    def steps_saved(self) -> float:
        """Share of all steps that the cache saved."""
        return 1 - self.steps_run / self.steps_total if self.steps_total else 0.0

    @property
    def seconds_saved(self) -> float:
        """Share of the seconds that the cache saved; negative when it cost more than it saved."""
        return 1 - self.seconds_with_cache / self.seconds_without_cache if self.seconds_without_cache else 0.0

    @property
    def time_in_words(self) -> str:
        return f"{self.seconds_saved:.0%} saved" if self.seconds_saved >= 0 else f"{-self.seconds_saved:.0%} more"

    @property
    def doubt(self) -> str:
        """Return a warning when the seconds saved differ much from the steps saved; else empty."""
        if self.steps_saved - self.seconds_saved < UNEVEN:
            return ""
        return (
            "The seconds do not follow the steps: each image was timed once each way, so they include all other work "
            "of the machine. Run the demo again on an idle machine."
        )


@dataclass(frozen=True)
class FewSteps:
    """The generated images beside the same requests in few steps without a cache."""

    steps: int
    """T of each run in few steps."""
    pictures: int
    steps_run: int
    steps_saved: float
    seconds: float
    clip_ratio: float | None
    """CLIP score of the images in few steps, as a share of that with all steps and no cache; None: not positive."""
    clip_ratio_with_cache: float | None
    """CLIP score of the images with the cache, as the same share."""


@dataclass(frozen=True)
class Variety:
    """Mean distance (1 − cosine of the embeddings) between the images of one prompt at several seeds."""

    prompts: int
    pictures: int
    with_cache: float
    without_cache: float

    @property
    def share(self) -> float | None:
        """Share of the variety without the cache; None without any."""
        return self.with_cache / self.without_cache if self.without_cache else None


def totals(rows: Sequence[Row]) -> tuple[Totals, Totals]:
    """Return separate totals of generated images and of exact repeats, because repeats would inflate the savings."""
    return _total(row for row in rows if not row.exact), _total(row for row in rows if row.exact)


def saved_by_relation(rows: Sequence[Row]) -> dict[str, Totals]:
    """Return totals of the generated images by their plan's relation."""
    drawn = [row for row in rows if not row.exact]
    names = sorted({row.picture.plan.relation for row in drawn})
    return {name: _total(row for row in drawn if row.picture.plan.relation == name) for name in names}


def variety(rows: Sequence[Row]) -> Variety:
    """Return the variety of all prompts that were generated at several seeds."""
    seeds: dict[str, list[Embeddings]] = {}
    for row in rows:
        if not row.exact:
            seeds.setdefault(row.prompt.text, []).append(row.embeddings)
    several = [some for some in seeds.values() if len(some) > 1]
    count = len(several) or 1
    return Variety(
        prompts=len(several),
        pictures=sum(map(len, several)),
        with_cache=sum(spread([one.picture for one in some]) for some in several) / count,
        without_cache=sum(spread([one.without for one in some]) for some in several) / count,
    )


def few_steps(rows: Sequence[Row]) -> FewSteps:
    """Return the figures of the runs in few steps, over the prompts that the cache did not repeat exactly."""
    drawn = [row for row in rows if not row.exact]
    asked, run = sum(row.steps for row in drawn), sum(row.few.steps_run for row in drawn)
    given = [row.embeddings for row in drawn]
    full = sum(_clip(one.prompt, one.without) for one in given)
    return FewSteps(
        steps=max((row.few.steps_run for row in drawn), default=0),
        pictures=len(drawn),
        steps_run=run,
        steps_saved=1 - run / asked if asked else 0.0,
        seconds=sum(row.seconds_few for row in drawn),
        clip_ratio=sum(_clip(one.prompt, one.few) for one in given) / full if full else None,
        clip_ratio_with_cache=sum(_clip(one.prompt, one.picture) for one in given) / full if full else None,
    )


def summary(rows: Sequence[Row]) -> str:
    """Return summary.json: totals of generated images, by relation, variety, few steps, each request, and repeats."""
    drawn, repeats = totals(rows)
    by_relation = {
        name: {**asdict(some), "steps_saved": some.steps_saved} for name, some in saved_by_relation(rows).items()
    }
    various = variety(rows)
    figures = {
        **asdict(drawn),
        "saved_by_relation": by_relation,
        "variety": {**asdict(various), "share": various.share},
        "few_steps": asdict(few_steps(rows)),
        "requests": [_request(number, row) for number, row in enumerate(rows, 1)],
        "exact_repeats": asdict(repeats),
    }
    return json.dumps(figures, indent=2) + "\n"


def nearest(plan: Plan) -> float | None:
    """Return the similarity of the image's start, or else of its nearest candidate; None without candidates."""
    if plan.similarity:
        return plan.similarity
    return max((one.similarity for one in plan.candidates), default=None)


def _total(rows: Iterable[Row]) -> Totals:
    those = list(rows)
    return Totals(
        pictures=len(those),
        steps_total=sum(row.steps for row in those),
        steps_run=sum(row.picture.steps_run for row in those),
        seconds_with_cache=sum(row.seconds for row in those),
        seconds_without_cache=sum(row.seconds_without for row in those),
    )


def _clip(prompt: Vector, image: Vector) -> float:
    return max(float(prompt @ image), 0.0)  # a CLIP score is never below 0 (Hessel et al., CLIPScore)


def _request(number: int, row: Row) -> Mapping[str, Any]:
    plan = row.picture.plan
    return {
        "file": f"{number:02}.png",
        "user": row.prompt.user,
        "prompt": row.prompt.text,
        "change": row.prompt.change,
        "source": plan.source.value,
        "relation": plan.relation,
        "similarity": nearest(plan),
        "start_step": plan.start_step,
        "steps": row.steps,
        "steps_run": row.picture.steps_run,
        "seconds": row.seconds,
        "seconds_without_cache": row.seconds_without,
        "seconds_few_steps": row.seconds_few,
        "from_prompt": chosen_prompt(plan),
        "from_model": chosen_model(plan),
        "model": row.picture.model,
        "reason": plan.reason,
        "degraded": list(plan.degraded),
        "seed": row.picture.seed,
    }
