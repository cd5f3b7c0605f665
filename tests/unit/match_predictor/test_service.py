"""The match predictor on the real in-process ports, asked over real gRPC."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos import match_predictor_pb2 as pb
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from services.cache_maintainer.admission import admit
from services.match_predictor.service import MatchPredictorService
from shared.domain.errors import InvalidRequestError, UnavailableError
from shared.domain.messages import EntriesCached, EntriesEvicted, JobQueued, Message
from shared.domain.types import Request, Scope, Size, Vector, vector_bytes, visible_owners
from shared.models.card_lookup import find_card, served_card
from shared.models.k_table import KTable, Level, profile_kind, table_to_json
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.service import Context, running
from shared.service.backends import Backends
from tests.unit.cached import ENCODER, MODEL, SIZE, finished_job, near, request, unit
from tests.unit.facts import heard


@dataclass
class House:
    """A running predictor, its ports and a client."""

    service: MatchPredictorService
    backends: Backends
    stub: MatchPredictorServiceStub

    async def cache(self, asked: Request, vector: Vector, *, tell: bool = True, **more: Any) -> str:
        job = await finished_job(self.backends, asked, vector, **more)
        entry = admit(job, picture=True)
        assert entry is not None
        await self.backends.catalog.entries.add(entry, {"whole": job.vector})
        if tell:
            await self.tell(EntriesCached((entry.id,)))
        return entry.id

    async def tell(self, fact: Message) -> None:
        """Until it was heard."""
        await self.backends.bus.publish(fact)
        await heard(self.backends.bus)

    async def predict(
        self, vector: Vector, *, tenant: str = "default", user: str = "ada", size: Size = SIZE, steps: int = 50
    ) -> bool:
        message = pb.PredictRequest(
            vector=vector_bytes(vector),
            encoder_hash=ENCODER,
            owners=visible_owners(tenant, user),
            compat=str(find_card(MODEL).compat(size, steps)),
        )
        return bool((await rpc.call(self.stub.Predict, message, timeout_s=5)).hit)

    async def stats(self) -> pb.StatsResponse:
        return await self.stub.Stats(pb.StatsRequest(), timeout=5)


@contextlib.asynccontextmanager
async def house(settings: Settings) -> AsyncIterator[House]:
    service = MatchPredictorService()
    async with (
        running([service], settings) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        await service.built.wait()
        yield House(service, process.context.backends, MatchPredictorServiceStub(channel))


@pytest.fixture
def noop(settings: Settings) -> Settings:
    return settings.model_copy(update={"large": MODEL, "sample_predicted_misses": 0.5})


async def test_follows_the_cache(noop: Settings) -> None:
    async with house(noop) as home:
        assert not await home.predict(unit(1))
        entry = await home.cache(request(), unit(1))
        assert await home.predict(near(unit(1), 0.7))  # Fig. 10 begins above .65
        assert not await home.predict(near(unit(1), 0.6))
        await home.tell(EntriesEvicted((entry, "unknown")))
        assert not await home.predict(unit(1))
        assert (await home.stats()).entries == 0


async def test_a_table_of_another_encoder_or_other_weights_sets_no_threshold(settings: Settings) -> None:
    given = settings.model_copy(update={"large": "bundled:small"})
    card = served_card(given)
    for encoder, weights in (("another", card.weights_hash), (ENCODER, "another")):
        async with house(given) as home:
            table = KTable((Level(10, 0.9),), model=card.name, weights_hash=weights, encoder_hash=encoder)
            kind = profile_kind(given.k_table_alpha)
            await home.backends.catalog.profiles.put(kind, card.name, card.weights_hash, table_to_json(table))
            await home.service._read_threshold()
            await home.cache(request(), unit(1))
            assert await home.predict(near(unit(1), 0.7))  # Fig. 10, should it count, begins above .65
            assert not await home.predict(near(unit(1), 0.6))


async def test_is_rebuilt_from_the_catalog(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1), tell=False)
        await home.cache(request("no states"), unit(2), tell=False, steps=())
        assert not await home.predict(unit(1))
    async with house(noop) as home:
        assert await home.predict(unit(1))
        assert not await home.predict(unit(2))  # not in the index either
        assert (await home.stats()).entries == 1


async def test_until_the_catalog_is_read_every_lookup_is_worth_it(
    noop: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.match_predictor.service.RETRY_S", 0.01)
    async with house(noop) as home:
        service = MatchPredictorService()
        items = home.backends.catalog.entries.items

        async def away(*_: object) -> None:
            raise UnavailableError("the catalog is away")

        monkeypatch.setattr(home.backends.catalog.entries, "items", away)
        await service.start(Context(noop, home.backends))
        ask = pb.PredictRequest(vector=vector_bytes(unit(1)), encoder_hash=ENCODER, owners=["public"])
        assert (await service.Predict(ask, None)).hit
        monkeypatch.setattr(home.backends.catalog.entries, "items", items)
        await asyncio.wait_for(service.built.wait(), 5)
        assert not (await service.Predict(ask, None)).hit
        await service.drain()
        await service.stop()


async def test_another_scopes_entries_never_make_a_hit_likely(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request("secret", scope=Scope.PRIVATE, user="ada"), unit(1))
        await home.cache(request("ours"), unit(2))
        await home.cache(request("everyone's", scope=Scope.PUBLIC), unit(3))
        seen = {
            (user, tenant): [await home.predict(unit(seed), user=user, tenant=tenant) for seed in (1, 2, 3)]
            for user, tenant in (("ada", "default"), ("bob", "default"), ("ada", "else"))
        }
        assert seen == {
            ("ada", "default"): [True, True, True],
            ("bob", "default"): [False, True, True],
            ("ada", "else"): [False, False, True],
        }


async def test_what_could_not_be_started_from_never_makes_a_hit_likely(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        assert await home.predict(unit(1))
        assert not await home.predict(unit(1), size=Size(128, 64))
        assert await home.predict(unit(1), steps=25)  # a state may stand at a step of this run too


async def test_an_entry_evicted_while_its_page_is_read_stays_away(
    noop: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(noop) as home:
        entry = await home.cache(request(), unit(1))
        service, items = MatchPredictorService(), home.backends.catalog.entries.items

        async def slowly(*args: Any) -> Any:
            page = await items(*args)
            await service.handle(EntriesEvicted((entry,)))
            return page

        monkeypatch.setattr(home.backends.catalog.entries, "items", slowly)
        await service.start(Context(noop, home.backends))
        await asyncio.wait_for(service.built.wait(), 5)
        assert (await service.Stats(pb.StatsRequest(), None)).entries == 0
        await service.drain()
        await service.stop()


async def test_the_model_is_looked_up_once(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.match_predictor.service.REREAD_S", 0.01)
    looked_up: list[str] = []

    def counted(settings: Settings) -> Any:
        looked_up.append(settings.large)
        return served_card(settings)

    monkeypatch.setattr("services.match_predictor.service.served_card", counted)
    async with house(noop) as home:
        card = find_card(MODEL)
        table = KTable((Level(10, 0.3),), model="noop", weights_hash=card.weights_hash)
        kind = profile_kind(noop.k_table_alpha)
        await home.backends.catalog.profiles.put(kind, "noop", card.weights_hash, table_to_json(table))
        await home.cache(request(), unit(1))
        async with asyncio.timeout(60):  # until the table was read again
            while not await home.predict(near(unit(1), 0.5)):
                await asyncio.sleep(0.01)
    assert looked_up == [MODEL]


async def test_live_precision_and_recall(noop: Settings) -> None:
    async with house(noop) as home:
        assert math.isnan((await home.stats()).precision)
        outcomes = [(True, True, False)] * 3 + [(True, False, False), (False, True, True), (False, None, False)]
        for predicted, found, sampled in outcomes:
            await home.tell(JobQueued("j", "l", "noop", "noise", predicted_hit=predicted, found=found, sampled=sampled))
        stats = await home.stats()
        assert (stats.precision, stats.recall, stats.judged) == (0.75, 0.6, 5)  # 3 / (3 + 1 ÷ .5)


@pytest.mark.parametrize("predictor", ["svm", "always"])
async def test_the_other_predictors(noop: Settings, predictor: str) -> None:
    async with house(noop.model_copy(update={"predictor": predictor})) as home:
        assert await home.predict(unit(1)) is (predictor == "always")
        for turn in range(3):
            await home.cache(request(f"p{turn}"), near(unit(1), 0.99 - turn / 100))
        async with asyncio.timeout(60):  # the first fit imports scikit-learn
            while (await home.stats()).entries < 3 or (predictor == "svm" and (await home.stats()).fits < 3):
                await asyncio.sleep(0.05)
        assert await home.predict(near(unit(1), 0.98))
        stats = await home.stats()
        assert stats.predictor == predictor
        assert (stats.fits > 0) is (predictor == "svm")
        if predictor == "svm":
            assert not await home.predict(-unit(1))


async def test_what_is_no_vector_is_refused(noop: Settings) -> None:
    async with house(noop) as home:
        for vector in (b"", b"12345"):
            with pytest.raises(InvalidRequestError, match="vector"):
                await rpc.call(home.stub.Predict, pb.PredictRequest(vector=vector), timeout_s=5)


async def test_after_a_gap_in_the_facts_it_knows_what_the_catalog_knows(noop: Settings) -> None:
    async with house(noop) as home:
        gone = await home.cache(request(), unit(1))
        assert await home.predict(unit(1))
        await home.cache(request("a blue ball"), unit(2), tell=False)
        await home.backends.catalog.entries.drop_entries([gone])  # and nobody said so
        assert not await home.predict(unit(2))
        await home.service.rebuild()  # what its subscription is told to call
        assert await home.predict(unit(2))
        assert not await home.predict(unit(1))


async def test_an_entry_that_kept_its_picture_alone_is_predicted_no_more(noop: Settings) -> None:
    async with house(noop) as home:
        spent, entries = await home.cache(request(), unit(1)), home.backends.catalog.entries
        await entries.embedded({spent: vector_bytes(unit(3))}, ENCODER)
        latents = (await entries.get(spent)).latents
        await entries.drop_states([(spent, state.step) for state in latents])  # and nobody said so
        assert [set(item.vectors) for item in await entries.items()] == [{"image"}]
        await home.service.rebuild()
        assert not await home.predict(unit(1))
        assert (await home.stats()).entries == 0
