"""Serves EmbedText and EmbedImage: cached texts at once, other texts in micro-batches, images one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias

import grpc
import numpy as np

from protos import embedder_pb2 as pb
from protos import embedder_pb2_grpc as pb_grpc
from services.embedder.encoder import Embedded, Encoder, Seen, decoded, encoder_folder
from shared.domain.errors import InvalidRequestError
from shared.models.devices import single_threaded
from shared.models.quality import look
from shared.runtime.batching import MicroBatcher
from shared.runtime.sealed import SealedCache
from shared.runtime.telemetry import METRICS
from shared.service import Context
from shared.service.callers import MayCall

Answer: TypeAlias = tuple[Embedded, float]
"""An embedding and the seconds that its batch (for an image, the image alone) took."""
OwnText: TypeAlias = tuple[str, str]
"""The scope key of a text's callers, and the text. One batch, too, computes the texts of different callers apart."""
MAX_TEXTS = 256
MAX_IMAGES = 64
"""Largest number of images per call."""
BATCH_TEXTS = 32
"""Largest number of texts that are encoded together."""


class EmbedderService(pb_grpc.EmbedderServiceServicer):
    name: ClassVar[str] = "embedder"
    receives_images: ClassVar[bool] = True
    callers: ClassVar[MayCall] = {
        "gateway": {"EmbedText"},
        "retriever": {"EmbedText"},
        "cache_maintainer": {"EmbedText", "EmbedImage"},
    }
    ports: ClassVar[frozenset[str]] = frozenset()

    async def start(self, context: Context) -> None:
        settings = self._settings = context.settings
        self._thread = ThreadPoolExecutor(1, "embedder", initializer=single_threaded)
        loop = asyncio.get_running_loop()
        folder = encoder_folder(settings.encoder)
        self._encoder: Encoder = await loop.run_in_executor(self._thread, Encoder, folder)
        self._remembered = SealedCache(settings.embed_cache)
        self._texts: MicroBatcher[OwnText, Answer] = MicroBatcher(
            lambda batch: self._encode("embed_forward", self._encoder.texts, [text for _, text in batch]),
            seats=BATCH_TEXTS,
            wait_s=settings.embed_wait_s,
        )
        # batching images on one thread saves little; without batches, a prompt waits for at most one image
        self._images: MicroBatcher[Seen, Answer] = MicroBatcher(
            lambda batch: self._encode("embed_picture_forward", self._encoder.seen, batch), seats=1
        )
        await self._texts.submit([("", "warm")])  # the first pass through the weights is several times slower

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_EmbedderServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["EmbedderService"].full_name

    async def drain(self) -> None:
        await self._texts.close()
        await self._images.close()

    async def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def EmbedText(self, request: pb.EmbedTextRequest, context: Any) -> pb.EmbedTextResponse:
        texts, owner = list(request.texts), request.owner
        _check_count("texts", len(texts), MAX_TEXTS)
        for number, text in enumerate(texts):
            if len(text) > self._settings.max_prompt_chars:
                rule = f"must have at most {self._settings.max_prompt_chars} characters"
                raise InvalidRequestError(f"texts[{number}]", rule, len(text))
        found = {text: self._remembered.get(owner, text) for text in texts}
        known = {text: pb.Embedding.FromString(kept) for text, kept in found.items() if kept is not None}
        fresh = [text for text in texts if text not in known]
        answers = await self._texts.submit([(owner, text) for text in fresh])
        for text, (embedded, _) in zip(fresh, answers, strict=True):
            known[text] = _message(embedded)
            self._remembered.put(owner, text, known[text].SerializeToString())
        return pb.EmbedTextResponse(
            embeddings=[known[text] for text in texts],
            encoder_hash=self._encoder.hash,
            encoder_weights=self._encoder.id.weights,
            encode_s=max((seconds for _, seconds in answers), default=0.0),
        )

    async def EmbedImage(self, request: pb.EmbedImageRequest, context: Any) -> pb.EmbedImageResponse:
        images = list(request.images)
        _check_count("images", len(images), MAX_IMAGES)
        # Decode all images before the first is encoded, so that a broken image fails its call. No caller waits for
        # latency here, so decoding runs sequentially.
        seen = [await asyncio.to_thread(self._encoder.look, data) for data in images]
        answers = await self._images.submit(seen)
        looks = [await asyncio.to_thread(_look, data) for data in images] if request.looks else []
        return pb.EmbedImageResponse(
            looks=looks,
            embeddings=[_message(embedded) for embedded, _ in answers],
            encoder_hash=self._encoder.hash,
            encode_s=sum({image: seconds for image, (_, seconds) in zip(seen, answers, strict=True)}.values()),
        )

    async def _encode(
        self, stage: str, encode: Callable[[list[Any]], list[Embedded]], batch: list[Any]
    ) -> Sequence[Answer]:
        def timed() -> list[Answer]:
            start = time.monotonic()
            rows = encode(batch)
            seconds = time.monotonic() - start
            METRICS.stage_seconds.labels(stage).observe(seconds)  # excludes the executor's overhead
            return [(row, seconds) for row in rows]

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)


def _check_count(field: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise InvalidRequestError(field, f"must have 1 to {most} items per call", count)


def _look(image: bytes) -> pb.Look:
    """Decode again: a look is asked for rarely."""
    found = look(np.asarray(decoded(image)))
    return pb.Look(contrast=found.contrast, saturation=found.saturation, sharpness=found.sharpness)


def _message(embedded: Embedded) -> pb.Embedding:
    return pb.Embedding(
        vector=embedded.vector,
        unknown_words=embedded.unknown_words,
        truncated=embedded.truncated,
        unknown_share=embedded.unknown_share,
    )
