"""The retriever on the real in-process ports, asked over real gRPC."""

import asyncio

import pytest

from protos import retriever_pb2 as pb
from services.retriever.relation import normalised
from shared.domain.errors import InvalidRequestError, ModelError, UnavailableError
from shared.domain.messages import DataErased, EntriesCached, EntriesEvicted
from shared.domain.types import CacheMode, Entry, PlanSource, Scope, Variation, vector_bytes
from shared.runtime import rpc
from shared.runtime.rpc_types import request_to_proto
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.unit.cached import ENCODER, near, request, unit
from tests.unit.facts import heard
from tests.unit.retriever.conftest import house


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


async def test_nothing_similar_draws_from_noise_and_says_how_near(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("else"), near(unit(1), 0.5))
        assert plan.source is PlanSource.NOISE
        assert plan.found is False
        assert "0.500" in plan.reason
        assert plan.capture_steps == (5, 10, 15, 20, 25, 30, 35, 40, 45)


async def test_an_exact_repeat_only_where_the_client_named_the_seed(noop: Settings) -> None:
    async with house(noop) as home:
        entry = await home.cache(request(), unit(1))
        repeat = await home.plan(request(), unit(1), seed_given=True)
        assert (repeat.source, repeat.entry_id) == (PlanSource.EXACT, entry)
        assert await home.backends.blobs.get(repeat.state_key, repeat.state_sha256)
        assert (await home.plan(request(), unit(1))).source is PlanSource.LATENT
        same = Variation.SAME  # another seed would start from noise
        changed = (request(seed=8, variation=same), request(guidance=1.1), request(steps=25))
        for other in (*changed, request(savings=0.6), request(fresh_noise=0.5)):
            assert (await home.plan(other, unit(1), seed_given=True)).source is PlanSource.LATENT
        for steered in (request(guidance=2.0), request(guidance=1.1, negative_prompt="blue")):
            assert (await home.plan(steered, unit(1), seed_given=True)).source is PlanSource.NOISE
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
        elsewhere = request("x", tenant="else", variation=Variation.SAME)
        assert (await home.plan(elsewhere, unit(2))).candidates == ()
    async with house(noop.model_copy(update={"public_tenants": ("else",)})) as home:
        assert (await home.plan(elsewhere, unit(2))).candidates == ()  # "far" does not share any more
    async with house(noop.model_copy(update={"public_tenants": ("else", "far")})) as home:
        plan = await home.plan(elsewhere, unit(2))
        assert plan.source is PlanSource.LATENT
        assert [one.prompt for one in plan.candidates] == [""]  # another caller's
        own = await home.cache(request("own", tenant="else"), unit(3))
        asked = pb.NearestRequest(tenant="else", vector=vector_bytes(unit(2)), encoder_hash=ENCODER, limit=9)
        found = await rpc.call(home.stub.Nearest, asked, timeout_s=5)
        assert [one.entry_id for one in found.hits] == [own]  # a gallery shows nobody else's


@pytest.mark.parametrize(("candidates", "steps"), [(3, (5, 10, 15, 20, 25)), (1, (25,))], ids=["", "search again"])
async def test_one_tenants_public_image_starts_nothing_where_a_crowd_counts(
    noop: Settings, candidates: int, steps: tuple[int, ...]
) -> None:
    """Also where the nearest entry has no state early enough, and the retriever searches further."""
    sharing = {"public_tenants": ("else", "far", "third"), "public_crowd": 2, "candidates": candidates}
    async with house(noop.model_copy(update=sharing)) as home:
        own = await home.cache(request("own", tenant="else"), near(unit(1), 0.85), steps=steps)
        await home.cache(request("planted", tenant="far", scope=Scope.PUBLIC), unit(1))
        asked = request("x", tenant="else", variation=Variation.SAME)
        alone = await home.plan(asked, unit(1))
        assert [one.entry_id for one in alone.candidates if one.prompt] == [own]
        assert len(alone.candidates) == 1
        # the second tenant's entry is less similar: from there on two are behind every hit
        await home.cache(request("popular", tenant="third", scope=Scope.PUBLIC), near(unit(1), 0.9))
        both = await home.plan(asked, unit(1))
        assert both.candidates[0].similarity == pytest.approx(0.9, abs=1e-3)


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
        assert (write.source, write.capture_steps) == (PlanSource.NOISE, (5, 10, 15, 20, 25, 30, 35, 40, 45))
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


async def test_too_many_unknown_words_start_from_noise_and_an_exact_repeat_all_the_same(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        asked = request("a gryphon", seed=8)
        few = await home.plan(asked, unit(1), unknown_share=0.33)
        assert few.source is PlanSource.LATENT
        many = await home.plan(asked, unit(1), unknown_share=0.5)
        assert (many.source, many.looked_up, many.candidates) == (PlanSource.NOISE, False, ())
        assert "50% of the prompt's words that name something are unknown to the encoder" in many.reason
        repeat = await home.plan(request(), unit(1), unknown_share=1.0, seed_given=True)
        assert repeat.source is PlanSource.EXACT
    async with house(noop.model_copy(update={"reuse_rules": "paper"})) as home:
        assert (await home.plan(asked, unit(1), unknown_share=1.0)).source is PlanSource.LATENT


async def test_a_cached_image_of_another_replica_counts_and_missed_ones_are_read_again(noop: Settings) -> None:
    async with house(noop) as home:
        entry = await home.cache(request("a fox"), unit(1))
        await home.backends.bus.publish(EntriesCached((entry,)))
        rerolled = request("a fox", seed=8)
        async with asyncio.timeout(5):
            while not home.service._entries.seen.rerolls(rerolled):
                await asyncio.sleep(0.01)
        counted = METRICS.relations.labels("reroll", "noise")._value
        before = counted.get()
        assert (await home.plan(rerolled, unit(1))).relation == "reroll"
        assert counted.get() == before + 1
        await home.service._after_gap()
        async with asyncio.timeout(5):
            while not home.service._entries.seen.rerolls(rerolled):
                await asyncio.sleep(0.01)


async def test_the_nearest_entries_that_a_user_may_start_from(noop: Settings) -> None:
    async with house(noop) as home:
        far = await home.cache(request("far", user="bob"), near(unit(1), 0.6))
        close = await home.cache(request("close"), near(unit(1), 0.9))
        own = await home.cache(request("own", scope=Scope.PRIVATE), unit(1))
        hidden = request("hidden", scope=Scope.PRIVATE, user="bob")
        public = request("public", scope=Scope.PUBLIC, tenant="other")
        for one in (hidden, public, request("elsewhere", tenant="other")):
            await home.cache(one, unit(1))
        asked = pb.NearestRequest(
            tenant=request().tenant, user="ada", vector=vector_bytes(unit(1)), encoder_hash=ENCODER, limit=2
        )
        found = (await rpc.call(home.stub.Nearest, asked, timeout_s=5)).hits
        assert [(one.entry_id, round(one.similarity, 3)) for one in found] == [(own, 1.0), (close, 0.9)]
        asked.limit = 9
        found = (await rpc.call(home.stub.Nearest, asked, timeout_s=5)).hits
        assert [one.entry_id for one in found] == [own, close, far]
        for field, value in (("limit", 0), ("limit", 501), ("vector", b""), ("vector", b"123")):
            wrong = pb.NearestRequest()
            wrong.CopyFrom(asked)
            setattr(wrong, field, value)
            with pytest.raises(InvalidRequestError, match=field):
                await rpc.call(home.stub.Nearest, wrong, timeout_s=5)


async def test_an_erasure_clears_the_prompts_in_memory(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request("a red cube"), unit(1))
        await home.plan(request("a green cube", seed=8), near(unit(1), 0.92))
        assert normalised.cache_info().currsize
        await home.service.handle(DataErased(("any",)))
        assert not normalised.cache_info().currsize  # before the entries that stay are read again
