"""MoDM in one process with the bundled pair: what the large model drew, the small one goes on from."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from services.cache_maintainer.service import CacheMaintainerService
from services.cli.display.words import where_it_started
from services.embedder.encoder import encoder_hash
from services.gateway.roster import Roster
from services.gateway.service import GatewayService
from services.gpu_worker.jobs import attempt
from services.retriever.service import RetrieverService
from shared.client import Picture, Progress
from shared.domain.errors import BlobMissingError, ModelError, UnavailableError
from shared.domain.messages import WorkerReported, refine_lane
from shared.domain.types import PlanSource
from shared.models.card_lookup import BUNDLED, find_card
from shared.models.k_table import KTable, Level, profile_kind, profile_of, table_to_json
from shared.runtime.settings import Settings
from tests.flows.house import House, house

FOX = "a red fox in the snow"


@pytest.fixture
async def pair(settings: Settings) -> AsyncIterator[House]:
    given = {"small": "bundled:small", "torch_threads": 1, "image_k_table_alpha": 0.9}  # any picture may start another
    async with house(settings.model_copy(update=given)) as home:
        yield home


async def seen(home: House, picture: Picture) -> Picture:
    """The picture, once prompts find it by what it shows."""
    async with asyncio.timeout(20):
        while "image" not in (await home.backends.catalog.entries.live([picture.job.id])).get(picture.job.id, ()):
            await asyncio.sleep(0.02)
    maintainer = next(one for one in home.process.services if isinstance(one, CacheMaintainerService))
    async with maintainer.cache._lock:  # whoever wrote that down has brought it into the index, too
        return picture


async def lane_of(home: House, picture: Picture) -> str:
    return str((await home.backends.catalog.jobs.get(picture.job.id)).lane)


async def test_a_large_miss_then_an_image_hit_through_refine_and_what_a_named_model_gets(pair: House) -> None:
    miss = await seen(pair, await pair.generate(FOX, seed=1))
    assert (miss.plan.source, miss.model, await lane_of(pair, miss)) == (PlanSource.NOISE, "large", "generate.large")

    hit = await seen(pair, await pair.generate("a fox in the snow at night", seed=2))
    assert (hit.plan.source, hit.model) == (PlanSource.IMAGE, "small")
    assert await lane_of(pair, hit) == refine_lane()
    assert hit.plan.start_step > 0
    assert hit.steps_run == 10 - hit.plan.start_step
    chosen = next(one for one in hit.plan.candidates if one.chosen)
    assert (chosen.entry_id, chosen.kind, chosen.model) == (miss.job.id, "image", "large")
    assert "by large" in hit.plan.reason
    assert not hit.plan.degraded

    again = await pair.generate("a fox in the snow at night", seed=2)
    assert (again.plan.source, again.model, again.png) == (PlanSource.EXACT, "small", hit.png)

    # of another size than the picture it starts from
    wide = await pair.generate(FOX, seed=3, width=96, height=64)
    assert (wide.plan.source, wide.model) == (PlanSource.IMAGE, "small")
    assert Image.open(io.BytesIO(wide.png)).size == (96, 64)

    # who names the large model is not answered with what the small one made of the same request
    named = await pair.generate("a fox in the snow at night", seed=2, quality="large")
    assert named.model == "large"
    assert named.plan.source is not PlanSource.EXACT
    small = await pair.generate("two blue fish under water", seed=2, quality="small", cache="off")
    assert (small.model, small.steps_run, await lane_of(pair, small)) == ("small", 10, "generate.small")


async def test_a_picture_that_vanished_is_a_miss_of_the_large_model_and_a_search_that_fails_costs_the_hit_only(
    pair: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    miss = await seen(pair, await pair.generate(FOX, seed=1))
    search = pair.backends.index.search

    async def without_pictures(name: str, *rest: Any) -> Any:
        if name == "image":
            raise UnavailableError("gone fishing")
        return await search(name, *rest)

    monkeypatch.setattr(pair.backends.index, "search", without_pictures)
    latent = await pair.generate("a red fox in the snow at night", seed=2, cache="read")
    assert (latent.plan.source, latent.model) == (PlanSource.LATENT, "large")
    assert latent.plan.degraded == ("index: UnavailableError: gone fishing",)
    monkeypatch.setattr(pair.backends.index, "search", search)

    entry = await pair.backends.catalog.entries.get(miss.job.id)
    monkeypatch.setattr(pair.backends.blobs, "get", _without(pair.backends.blobs, entry.picture_key))
    hole = await pair.generate("a fox on the beach", seed=3)
    assert (hole.plan.source, hole.model, hole.steps_run) == (PlanSource.NOISE, "large", 10)
    assert "generated from noise" in hole.plan.degraded[0]


async def test_a_small_model_with_a_t_of_its_own_draws_a_hit_in_the_steps_of_its_own_run(
    settings: Settings, tmp_path: Path, logs: list[MutableMapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "FIRST_S", 0.0)  # else a quick machine reports no progress
    turbo = shutil.copytree(BUNDLED / "small", tmp_path / "turbo")
    card = json.loads((turbo / "card.json").read_bytes())
    (turbo / "card.json").write_text(json.dumps({**card, "name": "turbo", "default_steps": 10, "auto_steps": []}))
    given = {"small": str(turbo), "torch_threads": 1, "image_k_table_alpha": 0.9}
    async with house(settings.model_copy(update=given)) as home:
        miss = await seen(home, await home.generate(FOX, seed=1, steps=50))
        assert (miss.model, miss.steps_run) == ("large", 50)

        stream = home.client.generate_stream("a fox in the snow at night", seed=2, variation="same")
        events = [event async for event in stream]
        hit = events[-1]
        assert isinstance(hit, Picture)
        assert (hit.plan.source, hit.model, hit.job.request.steps) == (PlanSource.IMAGE, "turbo", 50)
        assert hit.plan.run_steps(50) == 10
        assert hit.steps_run == 10 - hit.plan.start_step
        assert {event.steps for event in events if isinstance(event, Progress)} == {10}
        assert where_it_started(hit).startswith(f"Started after step {hit.plan.start_step} of 10 from large's image")
        assert f": {hit.steps_run} steps in" in where_it_started(hit)
        (line,) = (one for one in logs if one["event"] == "request finished" and one["job"] == hit.job.id)
        assert (line["model"], line["start_step"], line["steps"]) == ("turbo", hit.plan.start_step, 10)

        named = await home.generate("a fox in the snow at night", seed=2, quality="turbo", cache="off", steps=50)
        assert (named.model, named.steps_run) == ("turbo", 50)


async def test_a_small_model_with_truncated_weights_stops_the_start_by_the_name_of_its_file(
    settings: Settings, tmp_path: Path
) -> None:
    small = shutil.copytree(BUNDLED / "small", tmp_path / "small")
    (path,) = (small / "unet").glob("*.safetensors")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(ModelError, match=rf"model 'small': path: .*unet/{path.name}: cut short: \d+ of \d+ bytes"):
        async with house(settings.model_copy(update={"small": str(small), "torch_threads": 1})):
            pytest.fail("it was served")


def _without(blobs: Any, key: str) -> Any:
    get = blobs.get

    async def found(wanted: str, sha256: str = "") -> bytes:
        if wanted == key:
            raise BlobMissingError(f"blob {wanted}: not there")
        return bytes(await get(wanted, sha256))

    return found


def _hears_only(model: str, now: float) -> Roster:
    """A gateway's knowledge of workers after two reports of a minute each, both of one that runs `model`."""
    roster = Roster(report_s=60.0)
    for ago in (100.0, 20.0):
        roster.reported(WorkerReported("elsewhere", "cpu", model, 0, 8), now - ago)
    return roster


async def test_a_latent_hit_is_drawn_by_its_image_plan_where_nobody_runs_its_model(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = {"large": "noop:?name=big", "small": "noop:?name=little", "predictor": "always"}
    async with house(settings.model_copy(update=update)) as home:
        await _measured(home)
        first = await seen(home, await home.generate(FOX, seed=1))
        latent = await home.generate(FOX, seed=2, cache="read")
        assert (latent.plan.source, latent.model) == (PlanSource.LATENT, "big")
        assert latent.plan.fallback is not None
        assert [one.model for one in latent.plan.fallback.may_run] == ["little"]

        (gateway,) = (one for one in home.process.services if isinstance(one, GatewayService))
        monkeypatch.setattr(gateway._intake, "_roster", _hears_only("little", home.process.context.clock.monotonic()))
        image = await home.generate(FOX, seed=3, cache="read")
        assert (image.plan.source, image.model, image.plan.entry_id) == (PlanSource.IMAGE, "little", first.job.id)
        assert await lane_of(home, image) == refine_lane()
        assert image.plan.degraded[0] == "workers: no worker runs big, whose latent this would start from"


async def _measured(home: House) -> None:
    """`little` may go on from images of `big`, however similar they are, after 5 of 50 steps."""
    big, little = find_card("noop:?name=big"), find_card("noop:?name=little")
    table = KTable(
        (Level(5, -1.0),),
        model="little",
        weights_hash=little.weights_hash,
        encoder_hash=encoder_hash(BUNDLED / "clip"),
        alpha=home.process.context.settings.image_k_table_alpha,
        images_from="big",
        images_weights_hash=big.weights_hash,
    )
    kind = profile_kind(table.alpha, images=True)
    await home.backends.catalog.profiles.put(kind, profile_of(table), table.weights_hash, table_to_json(table))
    retriever = next(service for service in home.process.services if isinstance(service, RetrieverService))
    await retriever._tables.open()  # which it does by itself every half minute
    maintainer = next(service for service in home.process.services if isinstance(service, CacheMaintainerService))
    maintainer._unembedded.set()  # and this one too
