"""Live checks on the bundled model: hits are compared with the same requests from noise, and bad states stop reuse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import sqlalchemy as sa

from protos import cache_maintainer_pb2 as pb
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.cache_maintainer import service as maintainer
from services.embedder.encoder import encoder_folder, encoder_hash
from services.gpu_worker.jobs.codecs import decode_state, encode_state
from services.retriever import tables
from shared.catalog import Catalog, open_catalog
from shared.catalog.tables import states
from shared.client import Picture
from shared.domain.types import PlanSource
from shared.models.card_lookup import find_card
from shared.models.k_table import KTable, Level, profile_kind, table_to_json
from shared.models.scenes import caption, random_scene
from shared.runtime.settings import Settings
from shared.service.backends import blobs_of
from tests.flows.house import House, house

STEPS, K = 5, 4
SOURCES = 6
SOON = 200
"""Checks within which reuse must stop."""


@pytest.fixture
def checking(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Every hit is checked as soon as nothing else is generated; plans obey the verdicts soon after."""
    monkeypatch.setattr(maintainer, "EVERY_S", 0.05)
    monkeypatch.setattr(tables, "REREAD_S", 0.2)
    patient = {"lookup_timeout_s": 10.0, "call_timeout_s": 30.0, "fetch_timeout_s": 30.0}
    changes = {**patient, "torch_threads": 1, "image_tier": "off", "predictor": "always", "reuse_rules": "paper"}
    return settings.model_copy(update={**changes, "check_share": 1.0, "capture_steps": (10 * K,)})


def prompt(number: int) -> str:
    return caption(random_scene(random.Random(f"live checks {number}")), 0)


async def ask(it: House, number: int, seed: int, cache: str = "read") -> Picture:
    return await it.generate(prompt(number), steps=STEPS, seed=seed, cache=cache)


async def cells(it: House, *, reset: bool = False) -> list[pb.CheckedCell]:
    stub = CacheMaintainerServiceStub(it.process.context.channel("cache_maintainer"))
    return list((await stub.Quality(pb.QualityRequest(reset=reset), timeout=10.0)).cells)


async def pictures(it: House) -> list[str]:
    return [blob.key async for blob in it.backends.blobs.list("pictures/")]


async def checked(it: House, count: int) -> list[pb.CheckedCell]:
    """All cells, once so many hits were checked."""
    async with asyncio.timeout(120):
        while (found := await cells(it))[0].checks < count:
            await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def offline(settings: Settings) -> AsyncIterator[Catalog]:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    catalog = await open_catalog(settings.catalog_url)
    yield catalog
    await catalog.close()


async def loosen(settings: Settings) -> None:
    """A K table that allows K whatever the prompts are."""
    card = find_card(settings.large)
    encoder = encoder_hash(encoder_folder(settings.encoder))
    table = KTable((Level(10 * K, -1.0),), model=card.name, weights_hash=card.weights_hash, encoder_hash=encoder)
    async with offline(settings) as catalog:
        kind = profile_kind(settings.k_table_alpha)
        await catalog.profiles.put(kind, card.name, card.weights_hash, table_to_json(table))


def _execute(connection: sa.Connection, update: sa.Update) -> None:
    connection.execute(update)


async def corrupt(settings: Settings) -> None:
    """Replace every state by the negative of another entry's, so that each blob still has the hash of its row."""
    async with offline(settings) as catalog:
        found = await catalog.entries.states()
        blobs = await blobs_of(settings)
        data = [decode_state(await blobs.get(one.key, one.sha256), one.codec) for one in found]
        for one, other in zip(found, [*data[1:], data[0]], strict=True):
            sha256 = await blobs.put(one.key, encode_state(np.negative(other), one.codec, ()))
            row = sa.update(states).where(states.c.key == one.key).values(sha256=sha256)
            await catalog._database.write(_execute, row)
        await blobs.close()
    assert len(found) == SOURCES


async def test_corrupt_states_and_a_corrupt_table_stop_reuse(checking: Settings) -> None:
    await loosen(checking)
    async with house(checking) as it:
        for number in range(SOURCES):
            await ask(it, number, seed=number, cache="write")
        hits = [await ask(it, number, seed=10 + number) for number in range(SOURCES)]
        assert {(one.plan.source, one.plan.start_step) for one in hits} == {(PlanSource.LATENT, K)}
        everything, cell = await checked(it, SOURCES)
        assert (cell.relation, cell.source, cell.start_step, cell.steps) == ("other", "latent", K, STEPS)
        assert cell.ratios["score"].value > 0.75
        assert not everything.stopped_at
        assert len((await it.client.list_jobs())[0]) == 2 * SOURCES  # clients see no check
        async with asyncio.timeout(60):  # the last check is deleted just after its verdict
            while len(await pictures(it)) > 2 * SOURCES or await it.backends.catalog.jobs.left_checks():
                await asyncio.sleep(0.05)
        assert len(await pictures(it)) == 2 * SOURCES

    await corrupt(checking)
    async with house(checking) as it:
        done, none = SOURCES, None
        while none is None and done < SOON:
            for number in range(SOURCES):
                one = await ask(it, number, seed=100 + done)
                if one.plan.source is PlanSource.NOISE:
                    none = one
                    break
                done += 1
            else:
                await checked(it, done)
        assert none is not None
        assert "live checks stopped" in none.plan.reason
        assert any(one.stopped_at for one in await cells(it))
        assert not (await cells(it, reset=True))[0].checks
        async with asyncio.timeout(60):
            while (await ask(it, 0, seed=9998)).plan.source is PlanSource.NOISE:
                await asyncio.sleep(0.1)
