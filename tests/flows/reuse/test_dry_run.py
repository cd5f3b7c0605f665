"""A dry run: the plan that the next request gets, with nothing written, sent or counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from protos import match_predictor_pb2
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from services.retriever.service import RetrieverService
from shared.catalog.tables import METADATA
from shared.client import JobView
from shared.domain.errors import InvalidRequestError
from shared.domain.types import Job, JobState, PlanSource
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.flows.house import House, house


def _rows(connection: sa.Connection) -> dict[str, list[Any]]:
    return {name: list(connection.execute(sa.select(table))) for name, table in METADATA.tables.items()}


async def written(it: House, retriever: RetrieverService) -> dict[str, Any]:
    """Everything that a request may leave behind."""
    seen = retriever._entries.seen
    predictor: Any = MatchPredictorServiceStub(it.process.context.channel("match_predictor"))
    stats = await predictor.Stats(match_predictor_pb2.StatsRequest(), timeout=5.0)
    rows = await it.backends.catalog._database.read(_rows)
    return {
        **{name: of for name, of in rows.items() if name != "workers"},  # these report their seconds all the time
        "blobs": sorted([blob.key async for blob in it.backends.blobs.list("")]),
        "seen": [dict(window.counts) for window in (seen._long, seen._short)],
        "predictor": (stats.entries, stats.fits, stats.judged),
        "metrics": [list(metric.collect()) for metric in (METRICS.requests, METRICS.lookups, METRICS.relations)],
    }


def comparable(job: Job) -> Job:
    """The job without what only an accepted job has."""
    return replace(job, id="", created_at=0.0, updated_at=0.0, attempt=0, state=JobState.QUEUED)


async def test_a_dry_run_shows_the_next_plan_and_leaves_nothing(settings: Settings) -> None:
    settings = settings.model_copy(update={"large": "noop:", "predictor": "always"})
    retriever = RetrieverService()
    async with house(settings, without=["retriever"], plus=[retriever]) as it:
        fields: dict[str, Any] = {"steps": 10, "user": "ana"}
        fox = await it.generate("a red fox in the snow", seed=1, **fields)
        before = await written(it, retriever)
        plans: list[JobView] = []
        for prompt, seed in (
            ("a red fox in the snow at night", 2),
            ("a red fox in the snow", 2),
            (fox.job.request.prompt, 1),
        ):
            plans += await it.client.plan(prompt, seed=seed, **fields)
        assert await written(it, retriever) == before
        edit, reroll, repeat = plans
        assert [view.job.plan.source for view in plans] == [PlanSource.LATENT, PlanSource.NOISE, PlanSource.EXACT]
        assert (edit.job.plan.relation, reroll.job.plan.relation) == ("edit", "reroll")
        assert (edit.job.id, edit.model, edit.steps_run) == ("", "noop", 0)
        assert [one.entry_id for one in edit.job.plan.candidates] == [fox.job.id]
        assert repeat.job.plan.entry_id == fox.job.id

        made = await it.client.generate("a red fox in the snow at night", seed=2, **fields)
        assert comparable(made.job) == comparable(edit.job)
        with pytest.raises(InvalidRequestError, match="steps"):
            await it.client.plan("a fox", steps=0)
