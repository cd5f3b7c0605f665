"""What may start from what; and a cache that is damaged or away costs the hit, never the picture."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest

from protos import embedder_pb2
from protos.embedder_pb2_grpc import EmbedderServiceServicer, add_EmbedderServiceServicer_to_server
from shared.domain.errors import BlobUnavailableError
from shared.domain.types import PlanSource
from shared.service import Context
from tests import tiny as tiny_models
from tests.flows.conftest import Make
from tests.flows.house import House, house


async def test_changed_weights_are_a_miss(make: Make, tiny: Path, tmp_path: Path) -> None:
    async with house(make()) as it:
        await it.generate("a red fox", seed=1)
    other = tiny_models.build(tmp_path / "other", seed=1, clip=False)
    async with house(make(large=str(other / "large"))) as it:
        similar = await it.generate("a red fox!", seed=1)
        same = await it.generate("a red fox", seed=1)

    assert similar.plan.source is PlanSource.NOISE
    assert not [one for one in similar.plan.candidates if one.chosen]
    assert same.plan.source is not PlanSource.EXACT


async def test_the_same_weights_after_a_restart_are_a_hit(make: Make) -> None:
    async with house(make()) as it:
        first = await it.generate("a red fox", seed=1)
    async with house(make()) as it:
        same = await it.generate("a red fox", seed=1)
        similar = await it.generate("a red fox!", seed=1)

    assert same.plan.source is PlanSource.EXACT
    assert same.png == first.png
    assert similar.plan.source is PlanSource.LATENT


async def test_tenants_and_private_users_never_share(make: Make) -> None:
    async with house(make()) as it:
        await it.generate("a red fox", seed=1, user="ana", scope="private")
        by_ben = await it.generate("a red fox", seed=1, user="ben", cache="read")
        by_ana = await it.generate("a red fox", seed=1, user="ana", cache="read")
        await it.generate("a red fox", seed=5, user="ana", scope="tenant")
        by_ben_now = await it.generate("a red fox", seed=5, user="ben", cache="read")
        it.client._tenant = "other"
        elsewhere = await it.generate("a red fox", seed=5, user="ana", cache="read")

    assert by_ben.plan.source is PlanSource.NOISE
    assert by_ana.plan.source is PlanSource.EXACT
    assert by_ben_now.plan.source is PlanSource.EXACT
    assert elsewhere.plan.source is PlanSource.NOISE
    assert elsewhere.plan.candidates == ()


async def _states(it: House) -> dict[int, str]:
    return {state.step: state.key for state in await it.backends.catalog.entries.states()}


async def test_a_missing_and_a_corrupt_state_mean_a_smaller_k_then_noise(make: Make) -> None:
    settings = make()
    async with house(settings) as it:
        await it.generate("a red fox", seed=1)
        keys = await _states(it)
        whole = await it.generate("a red fox!", seed=2, cache="read")
        top = whole.plan.start_step
        assert top >= 2
        await it.backends.blobs.delete([keys[top]])
        smaller = await it.generate("a red fox!", seed=3, cache="read")
        for step in range(1, top):
            (settings.data_dir / "blobs" / keys[step]).write_bytes(b"not a latent")
        none = await it.generate("a red fox!", seed=4, cache="read")

    assert smaller.plan.source is PlanSource.LATENT
    assert smaller.plan.start_step == top - 1
    assert smaller.steps_run == 10 - (top - 1)
    assert smaller.plan.degraded
    assert none.plan.source is PlanSource.NOISE
    assert none.steps_run == 10
    assert none.plan.degraded
    assert none.png


async def test_a_lost_picture_of_an_exact_repeat_is_drawn_again(make: Make) -> None:
    async with house(make()) as it:
        first = await it.generate("a red fox", seed=1)
        view = await it.backends.catalog.jobs.get(first.job.id)
        await it.backends.blobs.delete([view.result.picture_key])
        again = await it.generate("a red fox", seed=1)

    assert again.plan.source is not PlanSource.EXACT
    assert any(note.startswith("blobs:") for note in again.plan.degraded)
    assert again.png


@pytest.mark.parametrize("trouble", ["unreadable", "slow"])
async def test_an_exact_repeat_whose_picture_cannot_be_read_is_drawn(
    make: Make, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    async with house(make(fetch_timeout_s=0.3)) as it:
        first = await it.generate("a red fox", seed=1)
        stored = (await it.backends.catalog.jobs.get(first.job.id)).result.picture_key
        get = it.backends.blobs.get

        async def troubled(key: str, sha256: str = "") -> bytes:
            if key == stored and trouble == "slow":
                await asyncio.sleep(60)
            if key == stored:
                raise BlobUnavailableError(f"blob {key}: Input/output error", retry_after_s=30.0)
            return bytes(await get(key, sha256))

        monkeypatch.setattr(it.backends.blobs, "get", troubled)
        again = await it.generate("a red fox", seed=1)

    assert again.plan.source is not PlanSource.EXACT
    assert any(note.startswith("blobs:") and len(note) > len("blobs: ") for note in again.plan.degraded)
    assert again.png


@pytest.mark.parametrize("service", ["embedder", "match_predictor", "retriever"])
async def test_without_a_service_pictures_are_drawn_all_the_same(make: Make, service: str) -> None:
    async with house(make(), without=[service]) as it:
        pictures = [await it.client.generate("a red fox", seed=n, steps=2) for n in range(5)]

    assert all(picture.plan.source is PlanSource.NOISE for picture in pictures[:1])
    assert all(picture.png for picture in pictures)
    for picture in pictures:
        assert any(note.startswith(f"{service}:") for note in picture.plan.degraded), picture.plan
    # after three failures it is left alone for a second
    assert "failed repeatedly" in pictures[3].plan.degraded[0]


class Embedder(EmbedderServiceServicer):
    """Answers late, or nonsense."""

    name: ClassVar[str] = "embedder"

    def __init__(self, answer: bytes, delay_s: float = 0.0, unknown: Sequence[str] = ()) -> None:
        self._answer, self._delay_s, self._unknown = answer, delay_s, unknown

    async def start(self, context: Context) -> None: ...

    def register(self, server: grpc.aio.Server) -> str:
        add_EmbedderServiceServicer_to_server(self, server)
        return embedder_pb2.DESCRIPTOR.services_by_name["EmbedderService"].full_name

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...

    async def EmbedText(self, request: Any, context: Any) -> embedder_pb2.EmbedTextResponse:  # noqa: N802 gRPC's name
        await asyncio.sleep(self._delay_s)
        found = embedder_pb2.Embedding(vector=self._answer, unknown_words=self._unknown, truncated=bool(self._unknown))
        return embedder_pb2.EmbedTextResponse(embeddings=[found], encoder_hash="test")


@pytest.mark.parametrize(
    ("answer", "delay_s", "said"),
    [(b"", 0.0, "0 bytes"), (b"\0" * 64, 0.0, "length 1 (got 0)"), (b"\xff" * 64, 0.0, "nan"), (b"", 5.0, "Deadline")],
    ids=["empty", "zeros", "not-finite", "late"],
)
async def test_a_late_or_wrong_embedder_costs_the_hit_only(
    make: Make, answer: bytes, delay_s: float, said: str
) -> None:
    settings = make(large="noop:", call_timeout_s=0.3 if delay_s else 10.0)
    async with house(settings, without=["embedder"], plus=[Embedder(answer, delay_s)]) as it:
        picture = await it.client.generate("a red fox", steps=2)
        off = await it.client.generate("a red fox", steps=2, cache="off")

    assert picture.plan.source is PlanSource.NOISE
    assert any(note.startswith("embedder:") and said in note for note in picture.plan.degraded), picture.plan.degraded
    assert off.plan.degraded == ()  # it wanted nothing from the cache, so it lost nothing


async def test_words_the_encoder_was_never_shown_are_a_warning_on_the_result(make: Make) -> None:
    vector = np.eye(1, 8, dtype="<f4").tobytes()
    embedder = Embedder(vector, unknown=["gryphon", "quokka"])
    async with house(make(large="noop:"), without=["embedder"], plus=[embedder]) as it:
        picture = await it.client.generate("a gryphon and a quokka", steps=2)
        kept = await it.client.get_job(picture.job.id)

    assert any("gryphon, quokka" in note for note in picture.job.warnings)
    assert any("longer than the encoder reads" in note for note in picture.job.warnings)
    assert kept.job.warnings == picture.job.warnings
    assert picture.plan.degraded == ()
