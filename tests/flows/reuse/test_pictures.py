"""A user draws, refines and repeats."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from services.embedder.encoder import encoder_id
from shared.client import Accepted, Client, Event, Picture, Progress
from shared.domain.errors import NotFoundError
from shared.domain.types import JobState, PlanSource
from shared.models.card_lookup import BUNDLED
from shared.models.k_table import FIG_10
from tests.flows.conftest import Make
from tests.flows.house import SLOW, house


async def test_a_second_picture_starts_from_the_first_one(make: Make) -> None:
    async with house(make()) as it:
        first = await it.generate("a red fox", seed=1)
        second = await it.generate("a red fox!", seed=2)

    assert first.plan.source is PlanSource.NOISE
    assert first.steps_run == 10
    assert second.plan.source is PlanSource.LATENT
    assert second.plan.start_step in (1, 2, 3, 4, 5)
    assert second.steps_run == 10 - second.plan.start_step
    assert second.plan.reason
    chosen = [one for one in second.plan.candidates if one.chosen]
    assert [one.prompt for one in chosen] == ["a red fox"]
    with Image.open(io.BytesIO(second.png)) as picture:
        assert picture.size == (64, 64)
    timings = second.timings
    assert min(timings.embed_s, timings.predict_s, timings.plan_s, timings.accept_s, timings.denoise_s) > 0
    assert timings.total_s >= timings.denoise_s


@pytest.mark.parametrize("published", [False, True])
async def test_a_published_table_counts_for_the_encoder_with_its_weights_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """Fig. 10 for the weights of the encoder that runs here, and as it is: for CLIP ViT-L/14's."""
    large = shutil.copytree(
        BUNDLED / "small", tmp_path / "large", ignore=shutil.ignore_patterns("*k_table_*", "*learned_bound*")
    )
    if published:
        here = encoder_id(BUNDLED / "clip").weights
        monkeypatch.setattr("shared.models.tables_in_force.FIG_10", replace(FIG_10, encoder_weights=here))
    async with house(make(large=str(large), encoder="bundled:clip")) as it:
        first = await it.generate("a red fox", seed=1)
        second = await it.generate("a red fox!", seed=2)
        again = await it.generate("a red fox", seed=1)

    source, note = (PlanSource.LATENT, "none measured") if published else (PlanSource.NOISE, "none counts")
    assert second.plan.source is source
    assert [note in one for one in second.plan.degraded] == [True]
    assert f"`afterimage profile --model {large} --encoder bundled:clip`" in second.plan.degraded[0]
    assert (again.plan.source, again.png) == (PlanSource.EXACT, first.png)


async def test_an_exact_repeat_returns_the_same_bytes_without_a_step(make: Make) -> None:
    async with house(make()) as it:
        first = await it.generate("a red fox", seed=1)
        again = await it.generate("a red fox", seed=1)
        other_seed = await it.generate("a red fox", seed=2)
        other_guidance = await it.generate("a red fox", seed=1, guidance=3.0)

    assert again.plan.source is PlanSource.EXACT
    assert (again.steps_run, again.png) == (0, first.png)
    assert again.job.id != first.job.id
    assert other_seed.plan.source is not PlanSource.EXACT
    assert other_guidance.plan.source is not PlanSource.EXACT


async def test_a_repeat_is_one_as_soon_as_the_first_picture_is_there(make: Make) -> None:
    async with house(make(), without=["cache_maintainer"]) as it:
        first, again = [await it.client.generate("a red fox", steps=10, seed=1) for _ in range(2)]

    assert again.plan.source is PlanSource.EXACT
    assert (again.steps_run, again.png) == (0, first.png)


async def test_without_a_seed_one_is_drawn_and_reported_and_nothing_repeats(make: Make) -> None:
    async with house(make()) as it:
        first, second = [await it.generate("a red fox") for _ in range(2)]
        named = await it.generate("a red fox", seed=first.seed)

    assert first.seed != second.seed
    assert not first.job.request.seed_given
    assert second.plan.source is not PlanSource.EXACT
    assert named.plan.source is PlanSource.EXACT  # the reported seed gives the picture back
    assert named.png == first.png


async def test_cache_off_neither_reads_nor_writes(make: Make) -> None:
    async with house(make()) as it:
        await it.generate("a red fox", seed=1)
        off = await it.generate("a red fox", seed=1, cache="off")
        assert off.plan.source is PlanSource.NOISE
        assert off.plan.capture_steps == ()
        assert (await it.backends.catalog.entries.totals()).entries == 1


async def test_a_stream_tells_the_queue_then_the_steps_then_the_picture(make: Make) -> None:
    async with house(make(progress_per_s=50)) as it:
        events = [event async for event in it.client.generate_stream("a red fox", steps=50, previews=True)]

    assert isinstance(events[0], Accepted)
    assert isinstance(events[-1], Picture)
    steps = [event.step for event in events if isinstance(event, Progress)]
    assert steps == sorted(steps)
    assert len(steps) >= 2
    previews = [event.preview for event in events if isinstance(event, Progress) and event.preview]
    assert previews
    with Image.open(io.BytesIO(previews[-1])) as preview:
        assert preview.size == (16, 16)
    assert events[0].job_id == events[-1].job.id


async def test_a_second_watcher_may_ask_for_previews_of_a_job_that_runs(make: Make) -> None:
    async with house(make(large=SLOW, progress_per_s=50)) as it:

        async def previews_of(stream: AsyncIterator[Event]) -> list[bool]:
            return [bool(event.preview) async for event in stream if isinstance(event, Progress)]

        first = it.client.generate_stream("a red fox", steps=100, idempotency_key="one")
        begun = await anext(first)
        assert isinstance(begun, Accepted)
        without = asyncio.create_task(previews_of(first))
        await asyncio.sleep(0.3)
        again = it.client.generate_stream("a red fox", steps=100, idempotency_key="one", previews=True)
        accepted = await anext(again)
        assert isinstance(accepted, Accepted)
        assert accepted.job_id == begun.job_id
        had = await previews_of(again)
        assert had == sorted(had)
        assert had[-1]
        assert not any(await without)


async def test_a_waiting_stream_says_how_many_are_ahead(make: Make) -> None:
    async with house(make(large=SLOW, max_rows=1)) as it:
        first = it.client.generate_stream("first", steps=50)
        await anext(first)
        events = [event async for event in it.client.generate_stream("second", steps=50)]
        await first.aclose()

    waiting = [event for event in events if isinstance(event, Progress) and event.step == 0]
    assert waiting  # one poll at least while the first job ran for a second
    assert isinstance(events[-1], Picture)


async def test_a_stream_says_that_a_worker_is_gone_and_the_job_waits_for_another(make: Make) -> None:
    async with house(make(large=SLOW, sweep_s=600.0), without=["gpu_worker"]) as it:
        jobs, events = it.backends.catalog.jobs, it.client.generate_stream("a red fox", steps=50)
        accepted, waiting = await anext(events), await anext(events)
        assert isinstance(accepted, Accepted)
        assert isinstance(waiting, Progress)
        assert (waiting.step, waiting.waits_again) == (0, "")
        claimed = await jobs.claim(accepted.job_id, "killed", -1.0)
        await jobs.checkpoint(accepted.job_id, claimed.attempt, "checkpoints/one", 20)
        await jobs.to_requeue(unconfirmed_after_s=600.0)
        async with asyncio.timeout(20):
            while not waiting.waits_again:
                waiting = await anext(events)
                assert isinstance(waiting, Progress)
        await events.aclose()

    assert waiting.waits_again == "its worker is gone; another worker continues"
    assert (waiting.step, waiting.steps) == (20, 50)


async def test_jobs_are_listed_by_page_and_seen_by_their_tenant_only(make: Make) -> None:
    async with house(make(large="noop:")) as it:
        ids = [(await it.client.generate(f"picture {n}", steps=2)).job.id for n in range(3)]
        page, token = await it.client.list_jobs(page_size=2)
        rest, end = await it.client.list_jobs(page_size=2, page_token=token)
        failed, _ = await it.client.list_jobs(state=JobState.FAILED)
        view = await it.client.get_job(ids[0])
        picture = await it.client.get_picture(ids[0])
        it.client._tenant = "other"
        with pytest.raises(NotFoundError):
            await it.client.get_job(ids[0])
        with pytest.raises(NotFoundError):
            await it.client.cancel(ids[0])
        others, _ = await it.client.list_jobs()

    assert [one.job.id for one in (*page, *rest)] == ids[::-1]
    assert (end, failed, others) == ("", [], [])
    assert view.job.state is JobState.SUCCEEDED
    assert picture.picture_bytes == len(picture.png) > 0


async def test_the_blocking_client_draws_too(make: Make) -> None:
    def draw(address: str) -> tuple[Picture, list[object]]:
        with Client(address) as client:
            return client.generate("a red fox", steps=2), list(client.generate_stream("a blue fox", steps=2))

    async with house(make(large="noop:")) as it:
        picture, events = await asyncio.to_thread(draw, it.process.address)

    assert picture.png
    assert isinstance(events[-1], Picture)
