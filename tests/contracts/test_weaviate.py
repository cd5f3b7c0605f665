"""The index on a server: restarts, silence, collections that are not what they should be."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from weaviate.exceptions import WeaviateInsertManyAllFailedError

from scripts.stack.servers import answers, free_port, listens
from shared.catalog import Catalog, open_catalog
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.domain.types import PICTURE_STEP, IndexFilter, IndexItem
from shared.index import Hnsw, open_index
from shared.index.rebuild import reconcile, repair_index
from shared.index.weaviate import CHANGING, WeaviateIndex
from shared.index.weaviate.collection import COLLECTION, FAMILY
from shared.index.weaviate.connection import Connection, client_of
from shared.index.weaviate.users import grant
from tests.contracts.conftest import an_empty_weaviate
from tests.contracts.nouns import a_vector, an_entry
from tests.contracts.servers import server_of, url_of

ALL = IndexFilter()


def item(entry_id: str, number: int) -> IndexItem:
    return IndexItem(entry_id, {"whole": a_vector(number)}, "c", "public", "h")


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    opened = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def index() -> AsyncIterator[WeaviateIndex]:
    opened = await an_empty_weaviate(url_of("weaviate"))
    assert isinstance(opened, WeaviateIndex)
    yield opened
    await opened.close()


async def ids_found(index: WeaviateIndex, number: int) -> list[str]:
    return [hit.entry_id for hit in await index.search("whole", a_vector(number), ALL, 5)]


async def test_a_restart_of_the_server_loses_nothing_and_needs_none_of_ours(index: WeaviateIndex) -> None:
    server = server_of("weaviate")
    await index.add([item("a", 1)])
    await asyncio.to_thread(server.stop)
    for trouble in (
        lambda: index.search("whole", a_vector(1), ALL, 1),
        lambda: index.add([item("b", 2)]),
        lambda: index.count(),
    ):
        with pytest.raises(UnavailableError, match="index"):
            await asyncio.wait_for(trouble(), 35.0)
    meanwhile = await open_index(server.url)  # a service that starts now
    assert isinstance(meanwhile, WeaviateIndex)
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="index: search"):
        await meanwhile.search("whole", a_vector(1), ALL, 1)
    assert time.monotonic() - start < 10.0
    await asyncio.to_thread(server.start)
    for opened in (index, meanwhile):
        assert await eventually_found(opened, 1) == ["a"]
    await index.add([item("b", 2)])
    assert sorted(await ids_found(meanwhile, 2)) == ["a", "b"]
    await meanwhile.close()


async def eventually_found(index: WeaviateIndex, number: int) -> list[str]:
    """It says that it is ready a moment before it answers searches."""
    for _ in range(20):
        try:
            return await ids_found(index, number)
        except UnavailableError:
            await asyncio.sleep(0.5)
    return await ids_found(index, number)


async def test_what_a_killed_server_half_forgot_is_brought_back_by_a_rebuild(
    index: WeaviateIndex, catalog: Catalog
) -> None:
    server = server_of("weaviate")
    ids = []
    for number in range(60):
        entry = an_entry(steps=(PICTURE_STEP, 5))
        ids.append(entry.id)
        await catalog.entries.add(
            entry, {"whole": a_vector(number).tobytes(), "image": a_vector(1000 + number).tobytes()}
        )
    await reconcile(catalog, index, ids)
    server.kill()
    await asyncio.to_thread(server.start)
    await eventually_found(index, 1)
    repaired = await repair_index(catalog, index, lambda _: None)
    assert repaired.kept + repaired.added == 60
    # with a filter, as every lookup: one at the very end of the lost log can be cut off from the rest of the graph
    where = IndexFilter(encoder_hash="clip-1")
    for name, first in (("whole", 0), ("image", 1000)):
        for number, entry_id in enumerate(ids):
            (hit,) = await index.search(name, a_vector(first + number), where, 1)
            assert hit.entry_id == entry_id


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.weaviate.SEARCH_S", 0.5)
    monkeypatch.setattr("shared.index.weaviate.CONNECT_S", 0.5)
    taken: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    index = await open_index(f"weaviate://127.0.0.1:{port}?grpc_port={port + 1}")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=r"index: search: no answer within 0\.5 s"):
        await index.search("whole", a_vector(1), ALL, 1)
    assert time.monotonic() - start < 5.0
    await index.close()
    for writer in taken:
        writer.close()
    silent.close()
    await silent.wait_closed()


@contextlib.asynccontextmanager
async def nobody() -> AsyncIterator[int]:
    yield free_port()


@contextlib.asynccontextmanager
async def another_service() -> AsyncIterator[int]:
    """As a gateway is: healthy, and not Weaviate."""
    server, said = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(said, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await said.set("", health_pb2.HealthCheckResponse.SERVING)
    yield port
    await server.stop(0)


@pytest.mark.parametrize("there", [nobody, another_service])
async def test_a_wrong_grpc_port_is_said_at_the_start_and_with_every_failure(
    there: Callable[[], AbstractAsyncContextManager[int]], logs: list[Any]
) -> None:
    async with there() as port:
        index = await open_index(f"{url_of('weaviate').partition('?')[0]}?grpc_port={port}")
        (said,) = [line for line in logs if "index unreachable" in line["event"]]
        wrong = rf"its gRPC does not at 127\.0\.0\.1:{port} .*grpc_port in index_url"
        assert re.search(wrong, said["error"])
        for trouble in (index.search("whole", a_vector(1), ALL, 1), index.add([item("a", 1)]), index.count()):
            with pytest.raises(UnavailableError, match=wrong) as away:
                await trouble
            assert str(port) not in away.value.outside
        await index.close()


async def test_who_waits_for_less_than_connecting_takes_finds_it_done_later(
    index: WeaviateIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a retriever does that was started before a server far away."""
    await index.add([item("a", 1)])
    meet, begun = Connection._meet_grpc, list[float]()

    async def far_away(self: Connection) -> None:
        begun.append(time.monotonic())
        await asyncio.sleep(1.0)
        await meet(self)

    monkeypatch.setattr(Connection, "_meet_grpc", far_away)
    late = WeaviateIndex(url_of("weaviate"), Hnsw())
    found: list[str] = []
    end = time.monotonic() + 20.0
    while not found and time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.4):
                found = await ids_found(late, 1)
    await late.close()
    assert (found, len(begun)) == (["a"], 1)


async def test_nobody_without_the_key_gets_anything_out_of_a_private_server(index: WeaviateIndex) -> None:
    """Two of its ports it binds to every interface whatever it is told; 127.0.0.2 stands for those here."""
    server = server_of("weaviate")
    told = server.environment
    own = urlsplit(server.url).port
    assert own is not None
    bound = [int(told[name]) for name in ("CLUSTER_GOSSIP_BIND_PORT", "RAFT_PORT", "RAFT_INTERNAL_RPC_PORT")]
    for port in (own, *bound):
        assert listens(port)
        assert not listens(port, "127.0.0.2")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{told['GRPC_PORT']}") as channel:
        for call in ("Search", "BatchObjects", "BatchDelete", "TenantsGet", "Aggregate"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(f"/weaviate.v1.Weaviate/{call}")(b"")
            assert "unauthorized" in str(refused.value.details()), call
    nodes = f"127.0.0.1:{told['CLUSTER_DATA_BIND_PORT']}"
    for at in (f"{nodes}/nodes/status", f"{nodes}/indices/{COLLECTION}/shards", f"127.0.0.1:{own}/v1/schema"):
        assert await asyncio.to_thread(answers, f"http://{at}", status=401), at


async def test_rights_granted_again_change_in_place(index: WeaviateIndex) -> None:
    user, admin = "afterimage_of_a_test", client_of(url_of("weaviate"), connect_s=5.0, read_s=5.0, write_s=5.0)
    own = await grant(url_of("weaviate"), user, "", "write")
    key = urlsplit(own).password or ""
    service = await open_index(own)
    await service.add([item("a", 1)])

    async def again() -> None:
        for rights in ("write", "read", "write", "read"):
            assert await grant(url_of("weaviate"), user, key, rights) == own

    granting = asyncio.create_task(again())
    while not granting.done():
        assert await service.count() == 1  # the service may read at every moment
    await granting
    with pytest.raises(UnavailableError, match=r"403|forbidden"):
        await service.add([item("b", 2)])
    await service.close()
    await admin.connect()
    role = await admin.roles.get(role_name=user)
    assert role is not None
    assert sorted(action for one in role.permissions for action in one.actions) == ["read_collections", "read_data"]
    await admin.roles.delete(role_name=user)
    await admin.users.db.delete(user_id=user)
    await admin.close()


async def test_a_collection_lost_while_serving_is_made_again(index: WeaviateIndex) -> None:
    await index.add([item("a", 1)])
    await index._connection.client.collections.delete(COLLECTION)
    assert await ids_found(index, 1) == []
    assert await index.count() == 0
    await index.remove(["a"])
    await index.add([item("b", 2)])
    assert await ids_found(index, 2) == ["b"]


async def test_two_processes_that_make_the_collection_at_once(index: WeaviateIndex) -> None:
    other = await open_index(url_of("weaviate"))
    long = IndexItem("long", {"whole": a_vector(3, dim=12), "image": a_vector(4)}, "c", "public", "h")
    await asyncio.gather(index.add([item("a", 1)]), other.add([item("b", 2), long]))
    assert sorted(await ids_found(index, 1)) == ["a", "b"]
    assert await index.count() == 3
    await other.close()


async def test_a_write_waits_while_another_process_changes_the_collection(
    index: WeaviateIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.add([item("a", 1)])
    data, said = index._objects.data, iter([CHANGING, f"{CHANGING}: [image_8 whole_12]"])
    insert_many = data.insert_many

    async def refused_at_first(objects: Any) -> Any:
        for message in said:
            raise WeaviateInsertManyAllFailedError(message)
        return await insert_many(objects)

    monkeypatch.setattr(data, "insert_many", refused_at_first)
    await index.add([item("b", 2)])
    assert await ids_found(index, 2) == ["b", "a"]
    said = iter(["store is read-only due to: disk usage too high"])
    with pytest.raises(UnavailableError, match="disk usage"):
        await index.add([item("c", 3)])


async def test_a_collection_that_is_not_ours_is_said(index: WeaviateIndex) -> None:
    await index._connection.client.collections.create(COLLECTION)
    with pytest.raises(ConfigurationError, match=f"index_url: the collection {COLLECTION} has no filter for compat"):
        await open_index(url_of("weaviate"))
    with pytest.raises(ConfigurationError, match="delete it"):
        await index.add([item("a", 1)])
    await index._connection.client.collections.delete(COLLECTION)


async def test_an_index_of_another_version_is_left_alone_and_said(index: WeaviateIndex, logs: list[Any]) -> None:
    other = f"{FAMILY}0"
    await index._connection.client.collections.create(other)
    try:
        await (await open_index(url_of("weaviate"))).close()
        (said,) = [line for line in logs if "another version" in line["event"]]
        assert "rebuild-index" in said["event"]
        assert said["found"] == [other]
        assert await index._connection.client.collections.exists(other)
    finally:
        await index._connection.client.collections.delete(other)


async def test_the_graphs_are_built_as_the_settings_say_and_searched_as_they_say_now(index: WeaviateIndex) -> None:
    async def graph() -> tuple[int, int, int, int]:
        spaces = await index._collection.spaces()
        assert spaces is not None
        found = spaces["whole_8"].vector_index_config
        assert found.quantizer is None
        return found.ef, found.ef_construction, found.max_connections, found.flat_search_cutoff

    first = await open_index(url_of("weaviate"), Hnsw(ef=64, ef_construction=100, max_connections=16, exact_up_to=2000))
    await first.add([item("a", 1)])
    assert await graph() == (64, 100, 16, 2000)
    await first.close()
    await (await open_index(url_of("weaviate"), Hnsw(ef=200, exact_up_to=3000))).close()
    assert await graph() == (200, 100, 16, 3000)
    assert await ids_found(index, 1) == ["a"]


@pytest.mark.parametrize(
    "url", ["weaviate://", "weaviate://host:x", "weaviate://h:1?grpc_port=x", "weaviate://:s3cret@h:8080?what=1"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"index_url: .*weaviate://host:port") as wrong:
        client_of(url, connect_s=1.0, read_s=1.0, write_s=1.0)
    assert "s3cret" not in str(wrong.value)
