"""Embeds finished pictures behind everybody's back, so that prompts find them by what they show (MoDM §5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from protos import embedder_pb2 as pb
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.cache_maintainer.cache import Cache
from shared import rpc
from shared.backends import Backends
from shared.errors import AfterimageError, BlobCorruptError, BlobMissingError, ConfigurationError, InvalidRequestError
from shared.service import Context
from shared.telemetry import METRICS, log
from shared.types import Entry

AT_A_TIME = 16
"""Few enough that a prompt in the embedder's queue waits no longer than for a batch of pictures."""
TIMEOUT_S = 30.0


class Pictures:
    """Works through the pictures that the catalog lists as not embedded; what fails is listed again."""

    def __init__(self, context: Context, backends: Backends) -> None:
        self._backends = backends
        self._embedder: EmbedderServiceStub | None = None
        try:
            self._embedder = EmbedderServiceStub(context.channel("embedder"))
        except ConfigurationError as error:
            log("cache_maintainer").warning("pictures are not embedded, and start nothing", error=str(error))

    async def embed_all(self, cache: Cache) -> int:
        """Until none is left, or the embedder, catalog or store is away; how many were embedded."""
        done, after = 0, ""
        while self._embedder is not None:
            page = await self._backends.catalog.entries.unembedded(AT_A_TIME, after)
            if not page:
                break
            done += await self._embed(page, cache)
            after = page[-1].id
        return done

    async def _embed(self, entries: Sequence[Entry], cache: Cache) -> int:
        read = [(entry, data) for entry in entries if (data := await self._read(entry, cache)) is not None]
        if not read:
            return 0
        try:
            reply = await self._ask([data for _, data in read])
        except InvalidRequestError as error:
            if len(read) == 1:  # no picture that anyone could start from
                log("cache_maintainer").warning("picture not embedded", entry=read[0][0].id, error=str(error))
                await cache.drop_picture(read[0][0].id)
                return 0
            return sum([await self._embed([entry], cache) for entry, _ in read])
        vectors = {entry.id: found.vector for (entry, _), found in zip(read, reply.embeddings, strict=True)}
        METRICS.pictures_embedded.inc(len(vectors))
        await cache.place_pictures(vectors, reply.encoder_hash)
        return len(vectors)

    async def _read(self, entry: Entry, cache: Cache) -> bytes | None:
        try:
            return await self._backends.blobs.get(entry.picture_key, entry.picture_sha256)
        except (BlobMissingError, BlobCorruptError):
            await cache.lose(entry.id, 0, entry.picture_key)
            return None

    async def _ask(self, pictures: Sequence[bytes]) -> pb.EmbedImageResponse:
        assert self._embedder is not None
        reply: pb.EmbedImageResponse = await rpc.call(
            self._embedder.EmbedImage, pb.EmbedImageRequest(images=pictures), timeout_s=TIMEOUT_S
        )
        if len(reply.embeddings) != len(pictures):
            raise AfterimageError(f"embedder: {len(reply.embeddings)} embeddings of {len(pictures)} pictures")
        return reply
