"""Every service its own process over real servers: what one process promises, several keep while some of them die.

Longer than 300 lines: all tests share one stack of servers and services, which takes long to start.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import numpy
import pytest

from protos import gateway_pb2
from protos import global_monitor_pb2 as monitor_pb2
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from scripts.stack import postgresql, rabbitmq, weaviate
from scripts.stack.stack import PORTS, Stack, missing, variable
from services.cli.connection import channel_to
from services.cli.doctor.command import examine
from services.cli.doctor.findings import Verdict
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import decode_png, encode_png
from shared.client import AsyncClient, Picture
from shared.domain.errors import (
    CancelledError,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from shared.domain.identity import Role, issued, principal_of
from shared.domain.ids import new_id
from shared.domain.messages import JobSucceeded, lane_of
from shared.domain.types import CompatKey, IndexFilter, IndexItem, Job, JobState, Plan, PlanSource, Request, vector_from
from shared.models import find_card
from shared.runtime.addresses import target_of
from shared.runtime.settings import Settings
from shared.service.backends import Backends, open_backends
from tests import tiny, tiny_clips
from tests.conftest import ROOT
from tests.contracts.servers import REQUIRED, folder
from tests.flows.cluster import LIMIT_S, ClusterStack, Watched
from tests.redraw import redraw

LONG = 200
"""Steps of a job in whose middle something is done to it: a few seconds, more on a busy machine."""
CLIP_STEPS = 60
EVERY = 10
"""Steps between two checkpoints."""
LEASE_S = 6.0
NEEDED = {"postgresql": postgresql, "rabbitmq": rabbitmq, "weaviate": weaviate}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterStack]:
    if said := missing(os.environ):
        required = any(name in REQUIRED and module.find() is None for name, module in NEEDED.items())
        (pytest.fail if required else pytest.skip)("; ".join(said))
    models = tiny_clips.build(tiny.build(tmp_path_factory.mktemp("models"), channels=(16,)))
    mesh = models / "mesh"
    subprocess.run([ROOT / "compose" / "mesh_certificates.sh", mesh], check=True)
    settings = {
        "mesh_certificates": str(mesh),
        "large": str(models / "large"),
        "video": str(models / tiny_clips.CLIPS),
        "encoder": str(models / "clip"),
        "torch_threads": 1,
        "batch_invariant": 2,
        "max_rows": 2,
        "max_message_bytes": 2**16,
        "checkpoint_every_steps": EVERY,
        "lease_s": LEASE_S,
        "sweep_s": 1.0,
        "maintainer_lease_s": 5.0,
        "drain_s": 0.5,
        "call_timeout_s": 20.0,
        "report_s": 2.0,
        "lookup_timeout_s": 10.0,
        "predictor": "always",
        "log_level": "warning",
    }
    made = ClusterStack(folder() / "cluster", replicas={"gateway": 2, "gpu_worker": 2}, settings=settings)
    with made:
        yield made


@pytest.fixture
async def backends(stack: Stack) -> AsyncIterator[Backends]:
    """What the services see, seen from outside."""
    urls: Any = {port.setting: stack.environment[variable(port.setting)] for port in PORTS}
    opened = await open_backends(Settings(**urls))
    yield opened
    await opened.close()


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[list[AsyncClient]]:
    made = [AsyncClient(address, retry_s=LIMIT_S) for address in stack.gateways]
    yield made
    for client in made:
        await client.close()


@pytest.fixture(scope="module")
def family(stack: Stack) -> Family:
    """The workers' model, in the test's own process."""
    environment = stack.environment
    return load_family(find_card(environment["AFTERIMAGE_LARGE"]), device="cpu", batch_invariant=2)


@pytest.fixture(scope="module")
def clip_family(stack: Stack) -> Family:
    """The workers' video model, in the test's own process."""
    return load_family(find_card(stack.environment["AFTERIMAGE_VIDEO"]), device="cpu", batch_invariant=2)


async def _worker_of(stack: Stack, backends: Backends, job_id: str) -> str:
    """The replica that draws this job."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            job = await backends.catalog.jobs.get(job_id)
            by_pid = {str(stack.processes[name].pid): name for name in stack.names("gpu_worker")}
            if job.state is JobState.RUNNING and (name := by_pid.get(job.worker.rpartition("-")[2])):
                return name
            await asyncio.sleep(0.05)


async def _clip_in(
    worker: str, prompt: str, *, stack: Stack, clients: list[AsyncClient], backends: Backends
) -> Watched:
    """A clip that this worker generates: each of both has room for one, and the other one is cancelled."""
    two = [Watched(client, f"{prompt} {number}", seed=5, steps=CLIP_STEPS, cache="off", guidance=1.0, modality="video")
           for number, client in enumerate(clients)]  # fmt: skip
    await asyncio.wait_for(asyncio.gather(*(clip.accepted.wait() for clip in two)), LIMIT_S)
    workers = await asyncio.gather(*(_worker_of(stack, backends, clip.job_id) for clip in two))
    other = two.pop(1 - workers.index(worker))
    await clients[0].cancel(other.job_id)
    with pytest.raises(CancelledError):
        await other.task
    return two[0]


async def _found(backends: Backends, picture: Picture) -> None:
    """Until the cache maintainer's entry of it is found by a search."""
    vector = vector_from((await backends.catalog.jobs.get(picture.job.id)).vector)
    async with asyncio.timeout(LIMIT_S):
        while picture.job.id not in {
            hit.entry_id for hit in await backends.index.search("whole", vector, IndexFilter(), 20)
        }:
            await asyncio.sleep(0.1)


async def _again(stack: Stack, name: str) -> None:
    await asyncio.to_thread(stack.restart, name)


async def _as_planned(picture: Picture, family: Family, backends: Backends) -> bytes:
    """The picture that its recorded plan yields when nothing happens to it."""
    job = await backends.catalog.jobs.get(picture.job.id)
    blob = await backends.blobs.get(job.plan.state_key) if job.plan.state_key else None
    drawn = await asyncio.to_thread(redraw, family, job.request, job.plan, blob)
    return encode_png(drawn.pixels, family.card.frames.fps)


async def test_a_miss_a_hit_and_a_repeat_through_different_gateways(
    clients: list[AsyncClient], backends: Backends, family: Family
) -> None:
    first, second = clients
    miss = await first.generate("a red cube on a table", seed=1, steps=20)
    assert miss.plan.source is PlanSource.NOISE
    assert all(note.startswith("k_table") for note in miss.plan.degraded)
    await _found(backends, miss)
    hit = await second.generate("a red cube on a table", seed=2, steps=20, variation="same")
    assert (hit.plan.source, hit.plan.entry_id) == (PlanSource.LATENT, miss.job.id)
    assert hit.steps_run == 20 - hit.plan.start_step < 20
    repeat = await second.generate("a red cube on a table", seed=1, steps=20)
    assert repeat.plan.source is PlanSource.EXACT
    assert repeat.png == miss.png != hit.png
    for picture in (miss, hit):
        assert await _as_planned(picture, family, backends) == picture.png


async def test_an_erased_job_is_gone_for_every_gateway(clients: list[AsyncClient], backends: Backends) -> None:
    first, second = clients
    made = await first.generate("a red axolotl on a table", seed=1, steps=20)
    await _found(backends, made)
    vector = vector_from((await backends.catalog.jobs.get(made.job.id)).vector)
    await first.erase(made.job.id)
    for client in clients:
        with pytest.raises(NotFoundError):
            await client.get_job(made.job.id)
    hits = await backends.index.search("whole", vector, IndexFilter(), 20)
    assert made.job.id not in {hit.entry_id for hit in hits}
    assert not [blob async for blob in backends.blobs.list() if made.job.id in blob.key]
    again = await second.generate("a red axolotl on a table", seed=1, steps=20)
    assert again.plan.source is not PlanSource.EXACT
    assert made.job.id not in repr(again.plan)


async def test_a_clip_its_parts_a_hit_and_a_repeat_through_different_gateways(
    clients: list[AsyncClient], backends: Backends, clip_family: Family
) -> None:
    fields: dict[str, Any] = {"frames": 12, "steps": 10, "guidance": 1.0, "variation": "same"}
    miss = await clients[0].generate_video("a red cube rolls to the left", seed=1, **fields)
    assert (miss.plan.source, miss.frames.shape) == (PlanSource.NOISE, (12, 32, 32, 3))
    data, parts = b"", 0
    while len(data) < miss.picture_bytes:  # each part is another gateway's
        asked = gateway_pb2.GetJobRequest(job_id=miss.job.id, picture=True, offset=len(data))
        stub: Any = clients[parts % 2]._stub
        data, parts = data + (await stub.GetJob(asked, timeout=LIMIT_S)).picture, parts + 1
    assert parts == 2
    assert hashlib.sha256(data).hexdigest() == miss.picture_sha256
    assert decode_png(data).shape == (12, 32, 32, 3)
    await _found(backends, miss)
    hit = await clients[1].generate_video("a red cube rolls to the left", seed=2, **fields)
    assert (hit.plan.source, hit.plan.entry_id) == (PlanSource.LATENT, miss.job.id)
    repeat = await clients[1].generate_video("a red cube rolls to the left", seed=1, **fields)
    assert repeat.plan.source is PlanSource.EXACT
    assert repeat.png == miss.png == data
    for clip in (miss, hit):
        assert await _as_planned(clip, clip_family, backends) == clip.png


async def test_an_uploaded_image_is_gone_after_its_job(clients: list[AsyncClient], backends: Backends) -> None:
    image = encode_png(numpy.full((32, 32, 3), 200, numpy.uint8))
    assert (await clients[0].generate("a red cube", image=image, steps=10, cache="off")).png
    async with asyncio.timeout(LIMIT_S):
        while [blob async for blob in backends.blobs.list("uploads/")]:
            await asyncio.sleep(0.1)


async def test_credentials_made_again_keep_what_services_use(stack: ClusterStack, clients: list[AsyncClient]) -> None:
    before = stack.own("gateway-1"), stack.own("retriever-1")
    if not before[0]:
        pytest.skip("the S3 server here is not MinIO, which has users")
    await asyncio.to_thread(stack.make_credentials)
    assert (stack.own("gateway-1"), stack.own("retriever-1")) == before
    assert (await clients[0].generate("a red cube", steps=10, cache="off")).png


async def test_a_service_can_do_no_more_than_its_code_does(stack: Stack) -> None:
    """Its user is refused by each of the four servers: other tables, events, blobs and a reader's writes."""

    async def as_(service: str, *ports: str) -> Backends:
        if not stack.own("gateway-1"):
            pytest.skip("the S3 server here is not MinIO, which has users")
        names = {port.setting: variable(port.setting) for port in PORTS}
        own = {setting: stack.own(f"{service}-1")[name] for setting, name in names.items()}
        return await open_backends(Settings(**cast("Any", own)), ports)

    key, _ = issued(principal_of("acme", "mallory", [Role.OPERATOR]))
    retriever, segmenter = await as_("retriever", "catalog", "index"), await as_("segmenter", "blobs")
    monitor = await as_("global_monitor", "bus")
    try:
        with pytest.raises(ConfigurationError, match="permission denied for table api_keys"):
            await retriever.catalog.keys.add(key, None)
        item = IndexItem("mallory", {"whole": numpy.ones(8, numpy.float32)}, "compat", "owner", "encoder")
        with pytest.raises(UnavailableError, match=r"403|forbidden"):
            await retriever.index.add([item])
        await segmenter.blobs.put("masks/of-a-test", b"a mask")
        with pytest.raises(UnavailableError, match="AccessDenied"):
            await segmenter.blobs.delete(["masks/of-a-test"])
        with pytest.raises(UnavailableError, match="AccessDenied"):
            await segmenter.blobs.put("states/planted", b"a latent")
        with pytest.raises(ConfigurationError, match="topic 'JobSucceeded'"):
            await monitor.bus.publish(JobSucceeded("nobody", 1))
    finally:
        for opened in (retriever, segmenter, monitor):
            await opened.close()
    with pytest.raises(ConfigurationError, match="refused the connection"):
        await as_("embedder", "catalog")


async def test_the_monitor_knows_the_workers_and_takes_back_one_that_was_killed(stack: Stack) -> None:
    async def allocation() -> monitor_pb2.AllocationResponse:
        settings = Settings(mesh_certificates=stack.environment[variable("mesh_certificates")])
        settings = settings.model_copy(update={"global_monitor_address": stack.address("global_monitor-1")})
        async with channel_to("global_monitor", settings.global_monitor_address, settings) as channel:
            call = GlobalMonitorServiceStub(channel).Allocation(monitor_pb2.AllocationRequest(), timeout=LIMIT_S)
            answer: monitor_pb2.AllocationResponse = await call.read()
            call.cancel()
            return answer

    async def until(workers: int) -> monitor_pb2.AllocationResponse:
        async with asyncio.timeout(LIMIT_S):
            while len((answer := await allocation()).assignments) != workers or not answer.leads:
                await asyncio.sleep(0.2)
        return answer

    assert {one.model for one in (await until(2)).assignments} == {"large"}
    await asyncio.to_thread(stack.kill, "gpu_worker-1")
    await until(1)
    await asyncio.to_thread(stack.restart, "gpu_worker-1")
    assert {one.running for one in (await until(2)).assignments} == {"large"}


async def test_several_images_one_key_and_two_gateways(
    clients: list[AsyncClient], backends: Backends, family: Family
) -> None:
    prompt, key = "three blue cones", new_id()
    planned = await clients[0].plan(prompt, n=3, seed=30, steps=20, cache="off")
    assert [view.job.request.seed for view in planned] == [30, 31, 32]
    assert all(job.request.prompt != prompt for job in (await backends.catalog.jobs.list(limit=100))[0])
    both = await asyncio.gather(
        *(one.generate_images(prompt, 3, seed=30, steps=20, cache="off", idempotency_key=key) for one in clients)
    )
    assert [one.job.id for one in both[0]] == [one.job.id for one in both[1]]
    assert [one.seed for one in both[0]] == [30, 31, 32]
    assert sum(job.request.prompt == prompt for job in (await backends.catalog.jobs.list(limit=100))[0]) == 3
    named = await clients[1].generate("a green cone", steps=20, from_job=both[0][2].job.id, strength=0.5)
    assert (named.plan.source, named.steps_run, named.plan.root) == (PlanSource.IMAGE, 10, both[0][2].job.id)
    for picture in (*both[0], named):
        assert await _as_planned(picture, family, backends) == picture.png


async def test_one_key_at_two_gateways_is_one_job(clients: list[AsyncClient], backends: Backends) -> None:
    key = new_id()
    asked = [client.generate("a blue ball", seed=1, steps=10, idempotency_key=key) for client in (*clients, *clients)]
    pictures = await asyncio.gather(*asked)
    assert len({picture.job.id for picture in pictures}) == 1
    assert len({picture.png for picture in pictures}) == 1
    with pytest.raises(ConflictError, match=key):
        await clients[1].generate("a green ball", seed=1, steps=10, idempotency_key=key)


async def test_cancelled_at_one_gateway_it_ends_at_the_other_and_at_the_worker(
    stack: Stack, clients: list[AsyncClient], backends: Backends
) -> None:
    both = [Watched(clients[0], f"a cone that nobody wants as {modality}", seed=1, steps=LONG, cache="off",
                    modality=modality) for modality in ("image", "video")]  # fmt: skip
    for waiting in both:
        await waiting.past(10)
    for waiting in both:
        cancelled = await clients[1].cancel(waiting.job_id)
        assert cancelled.job.state is JobState.CANCELLED
        with pytest.raises(CancelledError):
            await asyncio.wait_for(waiting.task, 30.0)
        async with asyncio.timeout(30.0):  # neither goes on drawing it
            while [blob async for blob in backends.blobs.list(f"checkpoints/{waiting.job_id}")]:
                await asyncio.sleep(0.1)
        assert (await clients[0].get_job(waiting.job_id)).job.state is JobState.CANCELLED


async def test_kill_9_of_a_worker_the_other_goes_on_where_it_was(
    stack: Stack, clients: list[AsyncClient], backends: Backends, family: Family, clip_family: Family
) -> None:
    image = Watched(clients[0], "a cube drawn by two workers", seed=5, steps=LONG, cache="off")
    await image.past(2 * EVERY)
    worker = await _worker_of(stack, backends, image.job_id)
    clip = await _clip_in(worker, "a cube that rolls", stack=stack, clients=clients, backends=backends)
    await image.past(3 * EVERY)
    await clip.past(2 * EVERY)
    stack.kill(worker)
    # a checkpoint behind those before the last one was there
    for waiting, model, most in ((image, family, LONG - 2 * EVERY), (clip, clip_family, CLIP_STEPS - EVERY)):
        picture = await waiting.task
        row = await backends.catalog.jobs.get(picture.job.id)
        assert (row.attempt, row.crashes, row.failures) == (2, 1, 0)
        assert 0 < picture.steps_run <= most
        assert row.plan.source is PlanSource.NOISE
        assert await _as_planned(picture, model, backends) == picture.png
        assert [blob async for blob in backends.blobs.list(f"checkpoints/{row.id}")] == []
    await _again(stack, worker)


async def test_a_hit_that_is_interrupted_keeps_its_plan(
    stack: Stack, clients: list[AsyncClient], backends: Backends, family: Family
) -> None:
    source = await clients[0].generate("a yellow cylinder", seed=1, steps=LONG)
    await _found(backends, source)
    waiting = Watched(clients[0], "a yellow cylinder", seed=2, steps=LONG, cache="read", variation="same")
    await asyncio.wait_for(waiting.accepted.wait(), LIMIT_S)
    planned = (await backends.catalog.jobs.get(waiting.job_id)).plan
    assert planned.source is PlanSource.LATENT
    await waiting.past(planned.start_step + 2 * EVERY)
    worker = await _worker_of(stack, backends, waiting.job_id)
    stack.kill(worker)
    picture = await waiting.task
    assert picture.plan == planned
    assert picture.steps_run < LONG - planned.start_step
    assert await _as_planned(picture, family, backends) == picture.png
    await _again(stack, worker)


async def test_a_worker_told_to_end_hands_back_and_nothing_counts_as_a_crash(
    stack: Stack, clients: list[AsyncClient], backends: Backends, family: Family, clip_family: Family
) -> None:
    image = Watched(clients[1], "a cone handed over", seed=5, steps=LONG, cache="off")
    await image.past(2 * EVERY)
    worker = await _worker_of(stack, backends, image.job_id)
    clip = await _clip_in(worker, "a cone that hops", stack=stack, clients=clients, backends=backends)
    await clip.past(EVERY)
    await asyncio.to_thread(stack.processes[worker].stop, 60.0)
    assert stack.processes[worker].returned == 0  # it drained, it was not killed
    for waiting, model in ((image, family), (clip, clip_family)):
        picture = await waiting.task
        row = await backends.catalog.jobs.get(picture.job.id)
        assert (row.attempt, row.crashes, row.failures) == (2, 0, 0)
        assert await _as_planned(picture, model, backends) == picture.png
    await _again(stack, worker)


async def test_a_gateway_that_dies_after_accepting_leaves_a_job_that_finishes(
    stack: Stack, clients: list[AsyncClient], backends: Backends
) -> None:
    async with AsyncClient(stack.address("gateway-1"), retry_s=0.0) as caller:
        waiting = Watched(caller, "a ball whose gateway dies", seed=1, steps=LONG, cache="off")
        await asyncio.wait_for(waiting.accepted.wait(), LIMIT_S)
        stack.kill("gateway-1")
        with pytest.raises(UnavailableError):
            await waiting.task
    await _finished(backends, waiting.job_id)
    assert (await clients[1].get_picture(waiting.job_id)).png
    await _again(stack, "gateway-1")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_caller_whose_gateway_goes_finds_its_job_at_another(stack: Stack, backends: Backends, end: str) -> None:
    async with AsyncClient(target_of(",".join(stack.gateways), "target"), retry_s=LIMIT_S) as caller:
        waiting = Watched(caller, f"a cone asked for twice, {end}", seed=1, steps=LONG, cache="off")
        await waiting.past(EVERY)
        await asyncio.to_thread(getattr(stack.processes["gateway-1"], end))  # the first of the target's addresses
        assert stack.processes["gateway-1"].returned == (0 if end == "stop" else -signal.SIGKILL)
        picture = await waiting.task
    row = await backends.catalog.jobs.get(waiting.job_id)
    assert (picture.job.id, row.attempt, row.crashes) == (row.id, 1, 0)
    await _again(stack, "gateway-1")


async def test_doctor_finds_four_servers_and_prints_no_password(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AFTERIMAGE_LISTEN", stack.gateways[0])
    found = await asyncio.to_thread(lambda: list(examine()))
    assert not [one for one in found if one.verdict is Verdict.WRONG]
    said = {one.check: one.fact for one in found if one.verdict is Verdict.OK}
    assert {"catalog", "bus", "blobs", "index"} <= said.keys()
    assert "with the same version" in said["service"]
    passwords = [urlsplit(stack.environment[variable(port.setting)]).password for port in PORTS]
    assert not [one for one in passwords if one and one in str(found)]


async def test_what_a_gateway_committed_and_did_not_send_is_swept_up(stack: Stack, backends: Backends) -> None:
    card = find_card(stack.environment["AFTERIMAGE_LARGE"])
    request = Request(prompt="committed, never sent", size=card.default_size, steps=10, guidance=1.0, seed=1)
    job = Job(id=new_id(), request=request, plan=Plan(PlanSource.NOISE, card.name), state=JobState.QUEUED,
              lane=lane_of(card.name))  # fmt: skip
    await backends.catalog.jobs.accept(job, key_lifetime_s=60.0)
    done = await _finished(backends, job.id)
    assert done.result is not None
    assert isinstance(done.result.compat, CompatKey)


async def test_a_maintainer_that_dies_is_replaced_by_the_one_that_stands_by(
    stack: Stack, clients: list[AsyncClient], backends: Backends
) -> None:
    await asyncio.to_thread(stack.add, "cache_maintainer")
    stack.kill("cache_maintainer-1")
    await _found(backends, await clients[0].generate("a cube that the second one caches", steps=20))
    await _again(stack, "cache_maintainer-1")


@pytest.mark.parametrize("setting", [port.setting for port in PORTS])
async def test_a_server_that_dies_and_comes_back_costs_nothing_but_time(
    stack: Stack, clients: list[AsyncClient], backends: Backends, family: Family, setting: str
) -> None:
    (server,) = {name for port in PORTS if port.setting == setting for name in port.programs} & set(stack.names())
    waiting = Watched(clients[0], f"a sphere while {server} dies", seed=5, steps=LONG)
    await waiting.past(EVERY)
    stack.kill(server)
    await asyncio.sleep(1.0)
    await _again(stack, server)
    picture = await waiting.task
    assert await _as_planned(picture, family, backends) == picture.png
    after = await _without_notes(clients[1], f"a sphere after {server}")  # no service was started again for that
    await _found(backends, after)
    assert (await _without_notes(clients[0], f"a sphere after {server}")).plan.source is PlanSource.LATENT


async def test_a_catalog_that_is_away_for_longer_than_a_lease_is_nobodys_crash(
    stack: Stack, clients: list[AsyncClient], backends: Backends
) -> None:
    waiting = Watched(clients[0], "a cone whose lease nobody can renew", seed=5, steps=LONG, cache="off")
    await waiting.past(EVERY)
    stack.kill("postgresql")
    await asyncio.sleep(LEASE_S + 2.0)
    await _again(stack, "postgresql")
    await waiting.task
    row = await backends.catalog.jobs.get(waiting.job_id)
    assert (row.attempt, row.crashes, row.failures) == (1, 0, 0)


async def _without_notes(client: AsyncClient, prompt: str) -> Picture:
    """The first picture whose plan lacked nothing: breakers close again within half a minute."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            picture = await client.generate(prompt, steps=20, variation="same")
            if all(note.startswith("k_table") for note in picture.plan.degraded):
                return picture
            await asyncio.sleep(0.5)


async def _finished(backends: Backends, job_id: str) -> Job:
    async with asyncio.timeout(LIMIT_S):
        while not (job := await backends.catalog.jobs.get(job_id)).state.final:
            await asyncio.sleep(0.1)
    assert job.state is JobState.SUCCEEDED
    return job


async def test_no_service_was_refused_by_another(stack: ClusterStack, backends: Backends) -> None:
    """After all of the above: `callers` names what each calls."""
    assert (await backends.catalog.jobs.list(limit=1))[0]
    logs = [path.read_text() for path in (stack.folder / "services").glob("*.log")]
    assert len(logs) >= 9
    assert not [line for said in logs for line in said.splitlines() if "call refused" in line]
