"""Catalog and blob store carry one another's id: nothing is ever collected from a store that belongs to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.cache_maintainer.orphan_collector import Collector
from shared.blobs import Blobs, open_blobs
from shared.bus import open_bus
from shared.catalog import Catalog, open_catalog
from shared.domain.errors import StoreMismatchError
from shared.domain.ids import new_id
from shared.index import open_index
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from shared.service.backends import Backends, open_backends
from shared.service.pairing import ENOUGH, SAMPLE, SEAL_KEY, Seal, adopt, compare, job_of, places_of, read_seal
from tests.contracts.databases import new_database
from tests.contracts.nouns import accepted, finished
from tests.contracts.servers import url_of

LATER = ManualClock(4e9)
"""Every blob is older than the grace."""


class Site:
    """A blob store with one catalog after the other."""

    def __init__(self, blobs_url: str, embedded: bool, settings: Settings, opened: AsyncExitStack) -> None:
        self._embedded, self._opened = embedded, opened
        self._base = settings.model_copy(update={"blobs_url": blobs_url, "quarantine_s": 0.0})
        self.blobs: Blobs

    async def open(self) -> Site:
        self.blobs = await open_blobs(self._base.blobs_url)
        self._opened.push_async_callback(self.blobs.close)
        await self.blobs.delete([blob.key async for blob in self.blobs.list()])
        return self

    async def settings(self) -> Settings:
        """Of the store, with a new and empty catalog."""
        if self._embedded:
            self._base.data_dir.mkdir(exist_ok=True)
            url = f"sqlite+aiosqlite:///{self._base.data_dir}/{new_id()}.db"
        else:
            url = await self._opened.enter_async_context(new_database())
        return self._base.model_copy(update={"catalog_url": url})

    async def catalog(self, settings: Settings) -> Catalog:
        catalog = await open_catalog(settings.catalog_url)
        self._opened.push_async_callback(catalog.close)
        return catalog

    async def collector(self, settings: Settings, catalog: Catalog) -> Collector:
        backends = Backends(await open_bus("inprocess:"), await open_index("memory:"), self.blobs, catalog)
        return Collector(backends, LATER, settings, lambda: None)

    async def keys(self) -> set[str]:
        return {blob.key async for blob in self.blobs.list()} - {SEAL_KEY}

    async def pictures(self, catalog: Catalog, count: int) -> set[str]:
        """The blobs of that many finished jobs, three each."""
        found: set[str] = set()
        for _ in range(count):
            job = await finished(catalog)
            assert job.result is not None
            found |= {job.result.picture_key, *(latent.key for latent in job.result.captured)}
        for key in found:
            await self.blobs.put(key, b"x")
        return found

    async def orphans(self, count: int) -> set[str]:
        keys = {f"states/{new_id()}/1/5" for _ in range(count)}
        for key in keys:
            await self.blobs.put(key, b"x")
        return keys


@pytest.fixture(params=["filesystem and sqlite", "seaweedfs and postgresql", "minio and postgresql"])
async def site(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> AsyncIterator[Site]:
    store, _, kind = request.param.partition(" and ")
    url = f"file:{tmp_path / 'blobs'}" if store == "filesystem" else url_of(store)
    async with AsyncExitStack() as opened:
        yield await Site(url, kind == "sqlite", settings, opened).open()


async def test_an_empty_catalog_over_the_store_of_another_deletes_nothing(
    site: Site, logs: list[MutableMapping[str, Any]]
) -> None:
    ours, wrong = await site.settings(), await site.settings()
    catalog = await site.catalog(ours)
    assert (await compare(catalog, site.blobs, places_of(ours))).state == "paired"
    kept = await site.pictures(catalog, 3)
    empty = await site.catalog(wrong)
    found = await (await site.collector(wrong, empty)).collect(confirmed=True)
    assert (found.held, found.deleted) == ("mismatch", 0)
    assert [one["why"] for one in logs if one["event"] == "nothing is collected"] == ["mismatch"]
    assert await site.keys() == kept
    # both are named, by place and id
    ids, foreign = await catalog.custody.ids(), await empty.custody.ids()
    places = places_of(wrong)
    for part in (places.store, places.catalog, places_of(ours).catalog, ids.catalog, ids.store, foreign.catalog):
        assert part in found.said
    assert "afterimage cache adopt --yes" in found.said
    password = sa.make_url(wrong.catalog_url).password
    assert "afterimage-secret" not in found.said
    assert not password or str(password) not in found.said
    # its own catalog collects, and keeps what it names
    orphans = await site.orphans(2)
    found = await (await site.collector(ours, catalog)).collect()
    assert (found.held, found.deleted) == ("", len(orphans))
    assert await site.keys() == kept


async def test_an_empty_catalog_over_a_store_without_an_id_deletes_nothing(
    site: Site, logs: list[MutableMapping[str, Any]]
) -> None:
    """A store of the version before."""
    ours, wrong = await site.settings(), await site.settings()
    kept = await site.pictures(await site.catalog(ours), 3)
    found = await (await site.collector(wrong, await site.catalog(wrong))).collect(confirmed=True)
    assert (found.held, found.deleted) == ("unadopted", 0)
    assert "knows 0% of 9 sampled blobs (90% are needed)" in found.said
    assert "orphans stay" in {one["event"] for one in logs}
    assert await read_seal(site.blobs) is None
    assert await site.keys() == kept


async def test_a_start_is_refused_where_the_two_belong_to_others(site: Site) -> None:
    first, second = await site.settings(), await site.settings()
    local = {"bus_url": "inprocess:"}
    await (await open_backends(first.model_copy(update=local))).close()
    with pytest.raises(StoreMismatchError, match="do not belong together"):
        await open_backends(second.model_copy(update=local))
    await (await open_backends(first.model_copy(update=local))).close()
    assert await site.keys() == set()


async def test_processes_that_meet_a_new_pair_at_once_agree(site: Site) -> None:
    ours = await site.settings()
    catalogs = [await site.catalog(ours) for _ in range(4)]
    found = await asyncio.gather(*(compare(one, site.blobs, places_of(ours)) for one in catalogs))
    assert [one.state for one in found] == ["paired"] * 4
    ids = {await one.custody.ids() for one in catalogs}
    assert len(ids) == 1
    assert await read_seal(site.blobs) == Seal(ids.pop().store, (await catalogs[0].custody.ids()).catalog,
                                               places_of(ours).catalog)  # fmt: skip


@pytest.mark.parametrize(("unknown", "state"), [(1, "paired"), (2, "unadopted")])
async def test_a_store_without_an_id_is_adopted_from_nine_tenths_on(site: Site, unknown: int, state: str) -> None:
    """9 of 10 are enough, 9 of 11 are not; what a lost attempt left of a job that the catalog has counts as known."""
    ours = await site.settings()
    catalog = await site.catalog(ours)
    await site.pictures(catalog, 2)
    working = await accepted(catalog)
    for key in (f"states/{working.id}-1-5", f"states/{working.id}-1-10", f"checkpoints/{working.id}-1-5"):
        await site.blobs.put(key, b"x")
    await site.orphans(unknown)
    assert (await compare(catalog, site.blobs, places_of(ours))).state == state
    assert (await read_seal(site.blobs) is not None) is (state == "paired")


async def test_a_catalog_that_has_a_store_refuses_an_empty_one(site: Site, tmp_path: Path) -> None:
    """A mistyped bucket: its workers would take every state for lost."""
    ours = await site.settings()
    catalog = await site.catalog(ours)
    assert (await compare(catalog, site.blobs, places_of(ours))).state == "paired"
    elsewhere = await open_blobs(f"file:{tmp_path / 'elsewhere'}")
    at = places_of(ours.model_copy(update={"blobs_url": f"file:{tmp_path / 'elsewhere'}"}))
    found = await compare(catalog, elsewhere, at)
    assert found.state == "mismatch"
    assert at.store in found.said
    assert places_of(ours).store in found.said
    await elsewhere.close()


async def test_a_pair_that_belongs_together_is_adopted_on_purpose(site: Site) -> None:
    """The catalog was lost for good: the new one takes the store, and the old one has none any more."""
    lost, new = await site.settings(), await site.settings()
    old, catalog = await site.catalog(lost), await site.catalog(new)
    assert (await compare(old, site.blobs, places_of(lost))).state == "paired"
    left = await site.pictures(old, 3)
    await adopt(catalog, site.blobs, places_of(new))
    assert (await compare(catalog, site.blobs, places_of(new))).state == "paired"
    assert (await compare(old, site.blobs, places_of(lost))).state == "mismatch"
    days = new.model_copy(update={"quarantine_s": 3 * 86_400.0})
    found = await (await site.collector(days, catalog)).collect()
    assert (found.held, found.unnamed, found.deleted) == ("", len(left), 0)
    assert await site.keys() == left


async def test_the_sample_is_drawn_over_every_kind(settings: Settings, tmp_path: Path) -> None:
    """A store with 2,000 blobs of one kind is judged by the few of the others, too."""
    blobs = await open_blobs(f"file:{tmp_path / 'blobs'}")
    catalog = await open_catalog("sqlite+aiosqlite://")
    ours = (await accepted(catalog)).id
    few = int(SAMPLE * (1 - ENOUGH)) + 20  # strangers: above a tenth of the sample, below a tenth of the store
    await asyncio.gather(*(blobs.put(f"pictures/{new_id()}/1.png", b"x", durable=False) for _ in range(few)))
    await asyncio.gather(*(blobs.put(f"states/{ours}/1/{n}", b"x", durable=False) for n in range(2 * SAMPLE)))
    found = await compare(catalog, blobs, places_of(settings))
    assert (found.state, job_of(f"states/{ours}/1/5")) == ("unadopted", ours)
    assert f"of {SAMPLE} sampled" in found.said
    await catalog.close()
    await blobs.close()
