"""The retriever on the real in-process ports, asked over real gRPC."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos import retriever_pb2 as pb
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.cache_maintainer.admission import admit
from services.embedder.encoder import encoder_hash
from services.embedder.service import EmbedderService
from services.retriever.service import RetrieverService
from shared.domain.errors import InvalidRequestError, ModelError, UnavailableError
from shared.domain.messages import EntriesCached, EntriesEvicted
from shared.domain.types import (
    CacheMode,
    Entry,
    IndexItem,
    Plan,
    PlanSource,
    Request,
    Scope,
    Vector,
    owner_key,
    vector_bytes,
)
from shared.models.card_lookup import BUNDLED, find_card
from shared.models.k_table import KTable, Level, profile_kind, table_to_json
from shared.runtime import rpc
from shared.runtime.clock import ManualClock
from shared.runtime.rpc_types import plan_from_proto, request_to_proto
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import running
from shared.service.backends import Backends
from tests.unit.cached import ENCODER, MODEL, finished_job, near, request, unit
from tests.unit.facts import heard


@dataclass
class House:
    """A running retriever, its ports and a client."""

    service: RetrieverService
    backends: Backends
    stub: RetrieverServiceStub

    async def cache(self, asked: Request, vector: Vector, **more: Any) -> str:
        """An entry as the maintainer writes it."""
        job = await finished_job(self.backends, asked, vector, **more)
        entry = admit(job)
        assert entry is not None
        await self.backends.catalog.entries.add(entry, {"whole": job.vector})
        owner = owner_key(entry.scope, entry.tenant, entry.user)
        await self.backends.index.add([IndexItem(entry.id, {"whole": vector}, str(entry.compat), owner, ENCODER)])
        return entry.id

    async def plan(self, asked: Request, vector: Vector | None, **more: Any) -> Plan:
        message = pb.PlanRequest(
            request=request_to_proto(asked),
            tenant=asked.tenant,
            seed_given=more.pop("seed_given", False),
            vector=vector_bytes(vector) if vector is not None else b"",
            encoder_hash=more.pop("encoder", ENCODER),
            model=more.pop("model", "noop"),
            **more,
        )
        return plan_from_proto((await rpc.call(self.stub.Plan, message, timeout_s=5)).plan)


@contextlib.asynccontextmanager
async def house(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[House]:
    service = RetrieverService()
    async with (
        running([service], settings, clock=clock) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        yield House(service, process.context.backends, RetrieverServiceStub(channel))


@pytest.fixture
def noop(settings: Settings) -> Settings:
    return settings.model_copy(update={"large": MODEL, "lookup_timeout_s": 0.3, "sample_predicted_misses": 0.0})


async def test_a_similar_prompt_starts_the_picture(noop: Settings) -> None:
    async with house(noop) as home:
        entry = await home.cache(request("a red cube"), unit(1))
        plan = await home.plan(request("a green cube", seed=8), near(unit(1), 0.92))
        assert (plan.source, plan.entry_id, plan.start_step) == (PlanSource.LATENT, entry, 20)
        assert plan.state_key == f"states/{entry}/1/20.safetensors"
        assert plan.looked_up
        assert plan.found
        assert not plan.degraded
        assert plan.candidates[0].prompt == "a red cube"
        assert await home.backends.blobs.get(plan.state_key, plan.state_sha256)


@pytest.mark.parametrize(("further", "start"), [(64, 15), (1, 0)])
async def test_holes_in_all_of_the_nearest_are_looked_past(noop: Settings, further: int, start: int) -> None:
    settings = noop.model_copy(update={"candidates": 3, "further_candidates": further})
    async with house(settings) as home:
        for place in range(5):  # what hits leave: states later than any similarity here allows
            await home.cache(request(f"late {place}"), near(unit(1), 0.94 - place / 1000), steps=(25,))
        entry = await home.cache(request("from noise"), near(unit(1), 0.88))
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.entry_id) == (start, entry if start else "")
        prompts = [one.prompt for one in plan.candidates]
        assert prompts == ["late 0", "late 1", "late 2", *(["from noise"] if start else [])]


@pytest.mark.parametrize("gone_at", [0.93, 0.90])
async def test_an_index_hit_whose_entry_is_gone_does_not_end_the_search(noop: Settings, gone_at: float) -> None:
    """Whether it is among the nearest or the last of them, which decides whether less similar ones may do better."""
    settings = noop.model_copy(update={"candidates": 3})
    async with house(settings) as home:
        for place in range(2):
            await home.cache(request(f"late {place}"), near(unit(1), 0.94 - place / 50), steps=(25,))
        compat = str(find_card(MODEL).compat(request().size, 50))
        gone = IndexItem(
            "gone", {"whole": near(unit(1), gone_at)}, compat, owner_key(Scope.TENANT, "default", ""), ENCODER
        )
        await home.backends.index.add([gone])
        entry = await home.cache(request("from noise"), near(unit(1), 0.88))
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.entry_id) == (15, entry)
        assert "no longer in the cache" in {one.reason for one in plan.candidates}


async def test_wider_searches_are_counted_by_their_outcome(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted() -> dict[str, float]:
        outcomes = ("later_start", "nothing_better", "failed")
        return {one: METRICS.wider_searches.labels(one)._value.get() for one in outcomes}

    async def plans(home: House, vector: Vector) -> dict[str, float]:
        before = counted()
        await home.plan(request("new"), vector)
        return {one: count - before[one] for one, count in counted().items() if count > before[one]}

    async with house(noop.model_copy(update={"candidates": 1})) as home:
        await home.cache(request("near"), near(unit(1), 0.94), steps=(20,))
        assert await plans(home, unit(1)) == {}  # it holds what its similarity allows
        await home.cache(request("late"), near(unit(2), 0.94), steps=(25,))
        await home.cache(request("later"), near(unit(2), 0.93), steps=(25,))
        assert await plans(home, unit(2)) == {"nothing_better": 1}
        await home.cache(request("from noise"), near(unit(2), 0.88))
        assert await plans(home, unit(2)) == {"later_start": 1}
        search = home.backends.index.search

        async def once(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                raise UnavailableError("the index is away")
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", once)
        assert await plans(home, unit(2)) == {"failed": 1}


async def test_a_further_look_that_fails_leaves_the_nearest(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = noop.model_copy(update={"candidates": 1})
    async with house(settings) as home:
        await home.cache(request("early"), near(unit(1), 0.94), steps=(5, 25))
        await home.cache(request("from noise"), near(unit(1), 0.92))
        search = home.backends.index.search

        async def once(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                raise UnavailableError("the index is away")
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", once)
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.candidates[0].prompt) == (5, "early")
        assert len(plan.candidates) == 1
        assert plan.degraded == ("index: UnavailableError: the index is away",)


async def test_two_looks_have_the_time_of_one(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, settings = ManualClock(), noop.model_copy(update={"candidates": 1, "lookup_timeout_s": 5.0})
    async with house(settings, clock) as home:
        await home.cache(request("early"), near(unit(1), 0.94), steps=(5, 25))
        await home.cache(request("from noise"), near(unit(1), 0.92))
        search = home.backends.index.search

        async def slow(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                await asyncio.sleep(0.01)
            else:
                clock.advance(10)  # as long as a search and a read may take
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", slow)
        home.service._entries.put((await home.backends.catalog.entries.page(9, ""))[0], 0)
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.candidates[0].prompt) == (5, "early")
        assert plan.degraded == ("index: no answer within 0 s",)


async def test_nothing_similar_draws_from_noise_and_says_how_near(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("else"), near(unit(1), 0.5))
        assert plan.source is PlanSource.NOISE
        assert plan.found is False
        assert "0.500" in plan.reason
        assert plan.capture_steps == (5, 10, 15, 20, 25)


async def test_an_exact_repeat_only_where_the_client_named_the_seed(noop: Settings) -> None:
    async with house(noop) as home:
        entry = await home.cache(request(), unit(1))
        repeat = await home.plan(request(), unit(1), seed_given=True)
        assert (repeat.source, repeat.entry_id) == (PlanSource.EXACT, entry)
        assert await home.backends.blobs.get(repeat.state_key, repeat.state_sha256)
        assert (await home.plan(request(), unit(1))).source is PlanSource.LATENT
        changed = request(seed=8), request(guidance=2.0), request(negative_prompt="blue"), request(steps=25)
        for other in (*changed, request(savings=0.6), request(fresh_noise=0.5)):
            assert (await home.plan(other, unit(1), seed_given=True)).source is PlanSource.LATENT
        bob = request(tenant="else")
        assert (await home.plan(bob, unit(1), seed_given=True)).source is PlanSource.NOISE


@pytest.mark.parametrize("first", ["large", "small"])
async def test_a_named_model_repeats_its_own_images_and_auto_those_of_served_models(noop: Settings, first: str) -> None:
    """Whichever of the two images is the newer one."""
    served = noop.model_copy(update={"small": "noop:?name=small"})
    async with house(served) as home:
        order = ("noop", "small") if first == "large" else ("small", "noop")
        # asked for as `auto` or `large`: the key holds the weights of the large model, whoever generated the image
        ids = {model: await home.cache(request(), unit(1), model=model, asked_of="noop") for model in order}
        named = await home.plan(request(quality="large"), unit(1), seed_given=True)
        assert (named.source, named.entry_id, named.model) == (PlanSource.EXACT, ids["noop"], "noop")
        auto = await home.plan(request(), unit(1), seed_given=True)
        assert (auto.source, auto.entry_id, auto.model) == (PlanSource.EXACT, ids[order[1]], order[1])
    async with house(noop) as home:  # the small model is no longer served
        ids = {model: await home.cache(request(), unit(1), model=model, asked_of="noop") for model in ("noop", "small")}
        assert (await home.plan(request(), unit(1), seed_given=True)).entry_id == ids["noop"]


async def test_scopes_are_never_crossed(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request("private", scope=Scope.PRIVATE, user="ada"), unit(1))
        assert (await home.plan(request("x", user="ada"), unit(1))).source is PlanSource.LATENT
        assert (await home.plan(request("x", user="bob"), unit(1))).candidates == ()
        assert (await home.plan(request("x", user="ada", tenant="else"), unit(1))).candidates == ()
        await home.cache(request("public", scope=Scope.PUBLIC, tenant="far"), unit(2))
        assert (await home.plan(request("x", tenant="else"), unit(2))).source is PlanSource.LATENT


async def test_a_predicted_miss_is_believed_unless_sampled_or_savings_are_wanted(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("x"), unit(1), predicted_hit=False)
        assert (plan.source, plan.looked_up, plan.found) == (PlanSource.NOISE, False, None)
        assert plan.predicted_hit is False
        assert (await home.plan(request("x", savings=0.9), unit(1), predicted_hit=False)).looked_up
        assert (await home.plan(request("x"), unit(1), predicted_hit=True)).predicted_hit is True
    async with house(noop.model_copy(update={"sample_predicted_misses": 1.0})) as home:
        plan = await home.plan(request("x"), unit(1), predicted_hit=False)
        assert (plan.looked_up, plan.sampled, plan.source) == (True, True, PlanSource.LATENT)


async def test_cache_modes(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        off = await home.plan(request(cache=CacheMode.OFF), unit(1), seed_given=True)
        assert (off.source, off.looked_up, off.capture_steps) == (PlanSource.NOISE, False, ())
        write = await home.plan(request(cache=CacheMode.WRITE), unit(1), seed_given=True)
        assert (write.source, write.capture_steps) == (PlanSource.NOISE, (5, 10, 15, 20, 25))
        assert (await home.plan(request(cache=CacheMode.READ), unit(1), seed_given=True)).source is PlanSource.EXACT


@pytest.mark.parametrize("port", ["index", "catalog"])
@pytest.mark.parametrize("failure", ["away", "slow"])
async def test_a_port_that_is_away_or_slow_costs_the_hit_only(
    noop: Settings, monkeypatch: pytest.MonkeyPatch, port: str, failure: str
) -> None:
    async def fails(*_: object) -> None:
        if failure == "slow":
            await asyncio.sleep(60)
        raise UnavailableError("gone fishing")

    async with house(noop) as home:
        await home.cache(request(), unit(1))
        if port == "index":
            monkeypatch.setattr(home.backends.index, "search", fails)
        else:
            monkeypatch.setattr(home.backends.catalog.entries, "by_ids", fails)
        plan = await home.plan(request("x"), unit(1))
        assert plan.source is PlanSource.NOISE
        assert len(plan.degraded) == 1
        assert plan.degraded[0].startswith(f"{port}: ")
        assert ("no answer within 0.3 s" if failure == "slow" else "gone fishing") in plan.degraded[0]
        assert plan.capture_steps


async def test_what_is_cached_and_evicted_is_known_without_asking_the_catalog(
    noop: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(noop) as home:
        first = await home.cache(request(), unit(1))
        await home.backends.bus.publish(EntriesCached((first,)))
        await heard(home.backends.bus)
        reads = []
        by_ids = home.backends.catalog.entries.by_ids

        async def counted(ids: list[str]) -> dict[str, Entry]:
            reads.append(ids)
            return await by_ids(ids)

        monkeypatch.setattr(home.backends.catalog.entries, "by_ids", counted)
        assert (await home.plan(request("x"), unit(1))).start_step == 25
        assert reads == []
        await home.backends.catalog.entries.drop_states([(first, 25)])
        await home.backends.bus.publish(EntriesEvicted((), holes=(first,)))
        await heard(home.backends.bus)
        plan = await home.plan(request("x"), unit(1))
        assert (plan.start_step, plan.candidates[0].allowed_step) == (20, 25)
        assert reads == [[first]]


async def test_without_an_embedding(noop: Settings) -> None:
    async with house(noop) as home:
        assert "no embedding" in (await home.plan(request(), None)).reason


async def test_a_no_op_model_takes_any_table_and_the_plan_says_so(noop: Settings) -> None:
    card = find_card(MODEL)
    table = KTable((Level(10, 0.5),), model="noop", weights_hash=card.weights_hash, encoder_hash="other")
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("x"), near(unit(1), 0.8))
        assert (plan.start_step, plan.degraded) == (10, ())
        assert plan.reason.endswith(
            "K table: NIRVANA Fig. 10, taken for a no-op model although it was measured with CLIP ViT-L/14."
        )
        await home.backends.catalog.profiles.put(
            profile_kind(noop.k_table_alpha), "noop", card.weights_hash, table_to_json(table)
        )
    async with house(noop) as home:
        plan = await home.plan(request("x"), near(unit(1), 0.6))
        assert (plan.start_step, plan.degraded) == (10, ())
        assert "taken for a no-op model although it was measured with another encoder" in plan.reason


async def test_without_a_table_for_the_encoder_only_exact_repeats_are_reused(
    settings: Settings, logs: list[dict[str, Any]]
) -> None:
    """The tables that ship with `large` count for the encoder that ships, and Fig. 10 for CLIP ViT-L/14: here runs
    neither."""
    settings = settings.model_copy(update={"large": "bundled:large", "image_tier": "off"})
    run = "afterimage profile --model bundled:large --encoder bundled:clip"
    async with house(settings) as home:
        await home.cache(request(), unit(1), model="bundled:large")
        for predicted in (True, False):  # a predicted miss hides the reason no more than a predicted hit
            plan = await home.plan(request("x"), unit(1), model="large", predicted_hit=predicted)
            assert (plan.source, plan.looked_up, plan.candidates) == (PlanSource.NOISE, False, ())
            assert "none counts for large with this encoder" in plan.reason
            assert plan.reason.endswith(f"only exact repeats are reused; run `{run}`.")
            assert [note.rpartition("; ")[2] for note in plan.degraded] == [f"run `{run}`"]
        repeat = await home.plan(request(), unit(1), model="large", seed_given=True)
        assert repeat.source is PlanSource.EXACT
        ours = await home.plan(request("x"), unit(1), model="large", encoder=encoder_hash(BUNDLED / "clip"))
        assert (ours.looked_up, ours.degraded) == (True, ())
    (said,) = [one for one in logs if one["event"] == "no K table: only exact repeats are reused"]
    assert (said["model"], run in said["why"]) == ("large", True)


async def test_the_start_names_the_models_without_a_table_for_its_encoder(
    settings: Settings, logs: list[dict[str, Any]]
) -> None:
    """`small` ships tables; the copy of its weights under another name has other weights by its configuration."""
    folder = shutil.copytree(BUNDLED / "small", settings.data_dir / "mine")
    (folder / "card.json").unlink()
    config = folder / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text() + "\n")
    settings = settings.model_copy(update={"large": str(folder), "small": "bundled:small"})
    async with running([RetrieverService(), EmbedderService()], settings):
        async with asyncio.timeout(60):
            while not (said := [one for one in logs if one["event"] == "no K table: only exact repeats are reused"]):
                await asyncio.sleep(0.01)
    assert [one["model"] for one in said] == ["mine"]
    assert f"run `afterimage profile --model {folder} --encoder bundled:clip`" in said[0]["why"]
    assert "k_table_0.95.json: it was measured with other weights" in said[0]["why"]


async def test_a_changed_weights_hash_is_a_miss(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
    other = noop.model_copy(update={"large": "noop:?name=noop&weights=2"})
    async with house(other) as home:
        plan = await home.plan(request("x"), unit(1))
        assert (plan.source, plan.candidates) == (PlanSource.NOISE, ())


async def test_nonsense_is_refused_by_name(noop: Settings) -> None:
    async with house(noop) as home:
        for message, field in (
            (pb.PlanRequest(request=request_to_proto(request()), model="noop", vector=b"123"), "vector"),
            (pb.PlanRequest(request=request_to_proto(request()), model="noop", vector=b"\xff" * 8), "vector"),
            (pb.PlanRequest(model="noop"), "request.steps"),
        ):
            with pytest.raises(InvalidRequestError, match=field):
                await rpc.call(home.stub.Plan, message, timeout_s=5)
        with pytest.raises(ModelError, match="nobody"):
            await rpc.call(
                home.stub.Plan, pb.PlanRequest(request=request_to_proto(request()), model="nobody"), timeout_s=5
            )


async def test_after_a_gap_in_the_facts_nothing_is_taken_from_memory(noop: Settings) -> None:
    async with house(noop) as home:
        entry = await home.cache(request(), unit(1))
        assert (await home.plan(request("x"), unit(1))).entry_id == entry
        states = (await home.backends.catalog.entries.get(entry)).states
        await home.backends.catalog.entries.drop_states([(entry, state.step) for state in states])  # nobody says so
        await home.service._after_gap()  # what its subscription is told to call
        assert (await home.plan(request("x"), unit(1))).source is PlanSource.NOISE
