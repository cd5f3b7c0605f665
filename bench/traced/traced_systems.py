"""A session trace drawn by one system after the other, so that it can be broken off and taken up again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.traced.cached_serving import CachedServing, Drawing, cached_serving
from bench.traced.painting import Paints, PlannedImage
from bench.traced.systems import Served, System
from load.sessions import MAIN_SIZE, Prompt
from services.embedder.encoder import Encoder
from services.replay.policy import read_policy
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError
from shared.domain.ids import new_id
from shared.domain.types import Plan, PlanSource, Request, Size, vector_from
from shared.models.card import ModelCard
from shared.models.card_lookup import served_cards
from shared.models.k_table import profile_kind, profile_of, raised, table_to_json
from shared.models.tables_in_force import load_image_tables
from shared.runtime.settings import Settings

FACTS = "facts.json"
"""In a folder of work, what it was made with."""
WINDOW = 8
"""Requests drawn together, which do not see each other's pictures: those of one full batch."""


def windows(indices: Iterable[int], rows: Sequence[Prompt], most: int = WINDOW) -> Iterator[list[int]]:
    """At most so many consecutive requests, no two of one user: a user waits for the last picture."""
    window: list[int] = []
    for index in indices:
        if len(window) == most or rows[index].user in {rows[one].user for one in window}:
            yield window
            window = []
        window.append(index)
    if window:
        yield window


def request_of(index: int, row: Prompt, card: ModelCard, system: System) -> Request:
    """At the main size, with the trace's seed where it names one."""
    own = random.Random(f"{row.prompt}/{index}").getrandbits(31)
    seed = own if row.seed is None else row.seed
    if system.other_seeds:
        seed = random.Random(f"other/{seed}/{index}").getrandbits(31)
    return Request(
        prompt=row.prompt,
        size=Size(*MAIN_SIZE),
        steps=system.steps,
        guidance=card.default_guidance,
        seed=seed,
        seed_given=False,
        user=str(row.user),
        savings=system.savings,
    )


class SystemRun:
    """One system's answers and pictures in a folder of its own, over rows of which the first `warm` are not counted."""

    def __init__(self, work: Path, system: System) -> None:
        self.system, self.folder = system, work / system.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._answers = self.folder / "answers.jsonl"
        self._whole = False

    @contextlib.contextmanager
    def alone(self, *, wait: bool) -> Iterator[bool]:
        """Whether this process is the only one that draws it, for as long as the block lasts; `wait`: until it is."""
        with (self.folder / "drawn.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    def answers(self) -> dict[int, Served]:
        lines = self._answers.read_text().splitlines() if self._answers.exists() else []
        found = {}
        for line in lines:
            try:
                values = json.loads(line)
            except ValueError:  # a kill in the middle of a line: drawn again
                continue
            may_run = tuple((model, step) for model, step in values["may_run"])
            found[values["index"]] = Served(**{**values, "may_run": may_run})
        return found

    def picture(self, index: int) -> bytes:
        return (self.folder / f"{index}.png").read_bytes()

    def pictures(self, indices: Iterable[int]) -> dict[int, bytes]:
        return {index: self.picture(index) for index in indices}

    def tell(self, served: Served, drawing: Drawing) -> None:
        """The picture first: an answer without one would never be drawn again."""
        path = self.folder / f"{served.index}.png"
        self._end_line()
        aside = path.with_suffix(".part")
        aside.write_bytes(drawing.png)
        aside.replace(path)
        with self._answers.open("a") as file:
            file.write(json.dumps(asdict(served)) + "\n")

    def _end_line(self) -> None:
        """A kill in the middle of a line must not cost the next one, too."""
        if self._whole:
            return
        self._whole = True
        if self._answers.exists() and (text := self._answers.read_text()) and not text.endswith("\n"):
            self._answers.write_text(f"{text}\n")

    async def draw(
        self,
        rows: Sequence[Prompt],
        warm: int,
        settings: Settings,
        encoder: Encoder,
        painter: Paints,
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Every row that was not answered before, in the trace's order; `advance` hears how many more are done."""
        own = {"data_dir": self.folder / "data", "catalog_url": "", "blobs_url": "", "listen": "127.0.0.1:0"}
        changed = settings.model_copy(update={**own, "metrics_listen": "", **self.system.changes})
        complete = Settings(**changed.model_dump())
        if self.system.raised_by:
            await raise_thresholds(complete, self.system.raised_by)
        async with cached_serving(complete, encoder) as serving:
            vectors = dict(enumerate(serving.vectors([row.prompt for row in rows])))
            turn = _Turn(self, rows, warm, serving, vectors, painter)
            done = self.answers().keys()
            first = 0 if self.system.cached else warm
            left = [index for index in range(first, len(rows)) if index not in done]
            for window in windows(left, rows):
                await turn.serve(window)
                advance(len(window))


class _Turn:
    def __init__(
        self, run: SystemRun, rows: Sequence[Prompt], warm: int, serving: CachedServing,
        vectors: Mapping[int, bytes], painter: Paints,
    ) -> None:  # fmt: skip
        self._run, self._rows, self._warm = run, rows, warm
        self._serving, self._vectors, self._painter = serving, vectors, painter
        self._shelf = _HandedOut(vectors, run) if run.system.hands_out else None

    async def serve(self, window: Sequence[int]) -> None:
        planned = {}
        for index in window:
            one = await self._planned(index)
            if one is not None:
                planned[index] = one
        drawn = self._painter.draw(list(planned.values()))
        for index, one in planned.items():
            await self._keep(index, one, drawn[one.name])

    async def _planned(self, index: int) -> PlannedImage | None:
        """None: answered already, with a picture as it is."""
        system, card = self._run.system, self._serving.cards[self._run.system.model]
        request = request_of(index, self._rows[index], card, system)
        name = f"{index:06d}-{new_id()}"
        if not system.cached or index < self._warm:
            capture = self._capture(request) if system.cached else ()
            plan = Plan(PlanSource.NOISE, card.name, capture_steps=capture, weights_hash=card.weights_hash)
            return PlannedImage(name, request, plan)
        if self._shelf is not None:
            return self._handed_out(index, PlannedImage(name, request, Plan(PlanSource.NOISE, card.name)))
        plan = self._painter.claimed(request, await self._serving.plan(request, self._vectors[index]))
        return PlannedImage(name, request, plan, await self._serving.state(plan))

    def _handed_out(self, index: int, drawn: PlannedImage) -> PlannedImage | None:
        assert self._shelf is not None
        found = self._shelf.nearest(index)
        if found is None:
            return drawn
        source, similarity = found
        served = Served(index, str(PlanSource.EXACT), "", drawn.request.steps, drawn.request.steps, similarity, ())
        self._run.tell(served, Drawing("", self._run.picture(source), {}, 0))
        return None

    def _capture(self, request: Request) -> tuple[int, ...]:
        return self._serving.capture_steps(request)

    async def _keep(self, index: int, one: PlannedImage, drawing: Drawing) -> None:
        plan = one.plan
        if self._shelf is not None:
            self._shelf.add(index)
        elif self._run.system.cached:
            await self._serving.keep(one.name, one.request, plan, self._vectors[index], drawing)
        may_run = tuple((able.model, able.start_step) for able in plan.may_run)
        served = Served(
            index,
            str(plan.source),
            plan.model,
            plan.start_step,
            plan.run_steps(one.request.steps),
            plan.similarity,
            may_run,
        )
        self._run.tell(served, drawing)


class _HandedOut:
    """Pictures by their prompts, of misses alone (services/replay/policies/retrieval.toml)."""

    def __init__(self, vectors: Mapping[int, bytes], run: SystemRun) -> None:
        self._rows = np.stack([vector_from(vectors[index]) for index in sorted(vectors)])
        self._least = read_policy("retrieval").min_similarity
        self._held = [one.index for one in run.answers().values() if one.source == PlanSource.NOISE]

    def add(self, index: int) -> None:
        self._held.append(index)

    def nearest(self, index: int) -> tuple[int, float] | None:
        """(whose picture, cosine of the prompts) above the policy's threshold."""
        if not self._held:
            return None
        cosines = self._rows[self._held] @ self._rows[index]
        best = int(np.argmax(cosines))
        return (self._held[best], float(cosines[best])) if cosines[best] > self._least else None


async def raise_thresholds(settings: Settings, by: float) -> None:
    """Put each shipped table for starts from images into the catalog with all thresholds raised.

    A table in the catalog counts before the one that ships, so the retriever of these settings uses the raised ones.
    """
    catalog = await open_catalog(settings.catalog_url)
    try:
        for card in served_cards(settings).values():
            for table in await load_image_tables(catalog.profiles, card, (), settings.image_k_table_alpha):
                kind = profile_kind(settings.image_k_table_alpha, images=True)
                value = table_to_json(raised(table, by))
                await catalog.profiles.put(kind, profile_of(table), table.weights_hash, value)
    finally:
        await catalog.close()


def same_work(work: Path, facts: Mapping[str, Any]) -> None:
    """Remembers what a folder of pictures was drawn with; ConfigurationError when it was drawn with something else."""
    path = work / FACTS
    told = json.loads(json.dumps(facts))
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told, indent=1))
    before = json.loads(path.read_text())
    if before != told:
        differs = sorted(key for key in {*before, *told} if before.get(key) != told.get(key))
        raise ConfigurationError(f"{work} was drawn with other {', '.join(differs)}; name another --work or remove it")


def main_size(rows: Sequence[Prompt]) -> list[Prompt]:
    """The rows as they are drawn: at the main size, of which alone latencies and tables were measured."""
    return [replace(row, width=MAIN_SIZE[0], height=MAIN_SIZE[1]) for row in rows]
