"""The embedder with a tiny CLIP pair, asked over real gRPC."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from PIL import Image

from protos import embedder_pb2 as pb
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.embedder.encoder import Embedded, Seen, decoded, encoder_hash
from services.embedder.service import MAX_TEXTS, EmbedderService
from shared.domain.errors import InvalidRequestError
from shared.domain.types import vector_from
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import running
from tests.unit.embedder.test_encoder import picture


@contextlib.asynccontextmanager
async def house(settings: Settings, folder: Path) -> AsyncIterator[tuple[EmbedderService, EmbedderServiceStub]]:
    service = EmbedderService()
    chosen = settings.model_copy(update={"encoder": str(folder), "max_prompt_chars": 100})
    async with (
        running([service], chosen) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        yield service, EmbedderServiceStub(channel)


def watched(service: EmbedderService, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The batches of texts that reach the encoder from now on."""
    batches: list[list[str]] = []
    texts = service._encoder.texts

    def watch(batch: Sequence[str]) -> list[Embedded]:
        batches.append(list(batch))
        return texts(batch)

    monkeypatch.setattr(service._encoder, "texts", watch)
    return batches


async def test_texts(settings: Settings, clip_folder: Path) -> None:
    async with house(settings, clip_folder) as (_, stub):
        ask = pb.EmbedTextRequest(texts=["a cube", "a ball", "a cube", "cube " * 20])
        reply = await rpc.call(stub.EmbedText, ask, timeout_s=10)
        assert reply.encoder_hash == encoder_hash(clip_folder)
        assert reply.encode_s > 0
        cube, ball, again, long = reply.embeddings
        assert cube.vector == again.vector != ball.vector
        assert float(np.linalg.norm(vector_from(cube.vector))) == pytest.approx(1, abs=1e-6)
        assert (cube.truncated, long.truncated) == (False, True)


async def test_a_text_is_encoded_once(settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(settings, clip_folder) as (service, stub):
        batches = watched(service, monkeypatch)
        ask = pb.EmbedTextRequest(texts=["a cube"])
        first = await rpc.call(stub.EmbedText, ask, timeout_s=10)
        second = await rpc.call(stub.EmbedText, ask, timeout_s=10)
        assert first.embeddings == second.embeddings
        assert second.encode_s == 0
        assert batches == [["a cube"]]


async def test_a_text_is_encoded_again_for_another_caller(
    settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of the first stage told a caller whether any other one, of any tenant, had sent the same prompt."""
    async with house(settings, clip_folder) as (service, stub):
        batches = watched(service, monkeypatch)
        asks = [pb.EmbedTextRequest(texts=["a cube"], owner=owner) for owner in ("tenant:a", "private:a:ada")]
        answers = [await rpc.call(stub.EmbedText, ask, timeout_s=10) for ask in (*asks, *asks)]
        assert [answer.encode_s > 0 for answer in answers] == [True, True, False, False]
        calls = (
            stub.EmbedText(pb.EmbedTextRequest(texts=["a fox"], owner=f"tenant:{i}"), timeout=10) for i in range(3)
        )
        await asyncio.gather(*calls)
        assert sorted(text for batch in batches for text in batch) == ["a cube", "a cube", "a fox", "a fox", "a fox"]


@pytest.mark.parametrize(("kept", "again"), [(2, ["a ball"]), (0, ["a cube", "a fox", "a ball"])])
async def test_the_text_that_was_not_asked_for_longest_is_encoded_again(
    settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch, kept: int, again: list[str]
) -> None:
    async with house(settings.model_copy(update={"embed_cache": kept}), clip_folder) as (service, stub):
        batches = watched(service, monkeypatch)
        for text in (asked := ["a cube", "a ball", "a cube", "a fox", "a cube", "a fox", "a ball"]):
            await rpc.call(stub.EmbedText, pb.EmbedTextRequest(texts=[text]), timeout_s=10)
        first = ["a cube", "a ball", "a fox"] if kept else asked[:4]
        assert [text for batch in batches for text in batch] == [*first, *again]


async def test_callers_ride_together(settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(settings.model_copy(update={"embed_wait_s": 0.1}), clip_folder) as (service, stub):
        batches = watched(service, monkeypatch)
        asks = (stub.EmbedText(pb.EmbedTextRequest(texts=[f"cube {i}"]), timeout=10) for i in range(6))
        replies = await asyncio.gather(*asks)
        assert sum(len(batch) for batch in batches) == 6
        assert len(batches) < 6
        assert len({reply.embeddings[0].vector for reply in replies}) == 6


async def test_pictures(settings: Settings, clip_folder: Path) -> None:
    async with house(settings, clip_folder) as (_, stub):
        reply = await rpc.call(stub.EmbedImage, pb.EmbedImageRequest(images=[picture(1), picture(2)]), timeout_s=10)
        assert len(reply.embeddings) == 2
        assert reply.embeddings[0].vector != reply.embeddings[1].vector


async def test_a_picture_is_decoded_once_and_equal_ones_are_encoded_once(
    settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodings, encoded = list[int](), list[int]()
    async with house(settings, clip_folder) as (service, stub):
        seen = service._encoder.seen

        def decode(data: bytes) -> Image.Image:
            decodings.append(len(data))
            return decoded(data)

        def watch(batch: Sequence[Seen]) -> list[Embedded]:
            encoded.append(len(batch))
            return seen(batch)

        monkeypatch.setattr("services.embedder.encoder.decoded", decode)
        monkeypatch.setattr(service._encoder, "seen", watch)
        three = [picture(1), picture(2), picture(1)]
        reply = await rpc.call(stub.EmbedImage, pb.EmbedImageRequest(images=three), timeout_s=10)
        assert decodings == [len(data) for data in three]
        assert encoded == [1, 1]
        one, two, again = (embedding.vector for embedding in reply.embeddings)
        assert one == again != two
        broken = pb.EmbedImageRequest(images=[picture(1), b"no picture"])
        with pytest.raises(InvalidRequestError, match="images"):
            await rpc.call(stub.EmbedImage, broken, timeout_s=10)
        assert encoded == [1, 1]


async def test_pictures_have_a_stage_of_their_own(settings: Settings, clip_folder: Path) -> None:
    """A request's time is told apart from what is embedded behind its back."""

    def seconds(stage: str) -> float:
        return float(METRICS.stage_seconds.labels(stage)._sum.get())

    async with house(settings, clip_folder) as (_, stub):
        texts, pictures = seconds("embed_forward"), seconds("embed_picture_forward")
        await rpc.call(stub.EmbedImage, pb.EmbedImageRequest(images=[picture(1)]), timeout_s=10)
        assert seconds("embed_forward") == texts
        assert seconds("embed_picture_forward") > pictures


async def test_a_text_waits_for_one_picture_not_for_all(
    settings: Settings, clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(settings, clip_folder) as (service, stub):
        ran, images, texts, asked = list[str](), service._encoder.seen, service._encoder.texts, threading.Event()

        def watch_images(batch: Sequence[Seen]) -> list[Embedded]:
            ran.append("image")
            asked.wait(5)
            return images(batch)

        def watch_texts(batch: Sequence[str]) -> list[Embedded]:
            ran.append("text")
            return texts(batch)

        monkeypatch.setattr(service._encoder, "seen", watch_images)
        monkeypatch.setattr(service._encoder, "texts", watch_texts)
        pictures = pb.EmbedImageRequest(images=[picture(1), picture(2), picture(3)])
        first = asyncio.ensure_future(rpc.call(stub.EmbedImage, pictures, timeout_s=10))
        async with asyncio.timeout(5):
            while not ran:
                await asyncio.sleep(0.01)
        second = asyncio.ensure_future(rpc.call(stub.EmbedText, pb.EmbedTextRequest(texts=["a cube"]), timeout_s=10))
        async with asyncio.timeout(5):
            while not service._texts._running or service._texts._running.done():
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # it stands in the encoder's queue
        asked.set()
        await asyncio.gather(first, second)
        assert ran == ["image", "text", "image", "image"]


async def test_bad_input_names_field_and_rule(settings: Settings, clip_folder: Path) -> None:
    async with house(settings, clip_folder) as (_, stub):
        for texts, field in (
            ([], "texts: must have 1 to"),
            (["x"] * (MAX_TEXTS + 1), "texts: must have 1 to"),
            (["ok", "x" * 101], r"texts\[1\]"),
        ):
            with pytest.raises(InvalidRequestError, match=field):
                await rpc.call(stub.EmbedText, pb.EmbedTextRequest(texts=texts), timeout_s=10)
        for images in ([], [b"no picture"], [picture(1), b""]):
            with pytest.raises(InvalidRequestError, match="images"):
                await rpc.call(stub.EmbedImage, pb.EmbedImageRequest(images=images), timeout_s=10)
        assert (await rpc.call(stub.EmbedText, pb.EmbedTextRequest(texts=["ok"]), timeout_s=10)).embeddings
