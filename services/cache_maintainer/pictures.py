"""Embeds finished images in the background, so that prompts can find images by their content (MoDM §5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from protos import embedder_pb2 as pb
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.retry_schedule import RetrySchedule
from shared.domain.errors import (
    AfterimageError,
    BlobCorruptError,
    BlobMissingError,
    InvalidRequestError,
    UnavailableError,
)
from shared.domain.types import Entry
from shared.models.card_lookup import of_images, served_cards
from shared.models.k_table import MODM, EncoderId, Profiles
from shared.models.tables_in_force import load_image_tables, measured_on
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.backends import Backends

AT_A_TIME = 16
TIMEOUT_S = 30.0
"""Timeout of one call with at most AT_A_TIME images."""
REMEMBERED = 1024
"""Images that wait in memory; beyond this number, the service queries the catalog for all of them."""


class Pictures:
    """Embeds the images of new entries. At the start and after failures, it also embeds those that the catalog lists.

    The catalog keeps listing images that are not embedded, so each failure is retried. No image is embedded until some
    served model may start from a served model's images. Then all images are embedded.
    """

    def __init__(self, context: Context, backends: Backends) -> None:
        self._backends = backends
        self._clock, self._settings = context.clock, context.settings
        self._start_something: bool | None = None
        """True when a served model may start from images; None until looked up."""
        self._encoder: EncoderId | None = None
        """Identity of the embedder's encoder; None until the embedder has answered."""
        self._setbacks = RetrySchedule()
        self._max_bytes = context.settings.max_message_bytes // 2
        self._heard: dict[str, Entry] = {}
        self.behind = True
        """True when the catalog must be queried for unembedded images."""
        self._context, self._embeds = context, bool(context.addresses("embedder"))
        if not self._embeds:
            log("cache_maintainer").warning("images are not embedded: embedder_address is not set")

    @property
    def _embedder(self) -> EmbedderServiceStub:
        return self._context.stub(EmbedderServiceStub, "embedder")

    def hear(self, entries: Iterable[Entry]) -> bool:
        """Queue the images of entries that came into the cache; return whether an image needs embedding."""
        if not self._embeds or self._start_something is False:
            return False
        with_picture = {entry.id: entry for entry in entries if entry.picture is not None}
        if len(self._heard) + len(with_picture) > REMEMBERED:
            self.behind = True  # the catalog then lists the queued ones too
        elif not self.behind:
            self._heard |= with_picture
        return bool(with_picture)

    def look_again(self) -> bool:
        """Return whether images are left to embed; if some failed, the next run asks the catalog."""
        self.behind |= len(self._setbacks) > 0
        return self.behind

    async def embed_waiting(self, cache: Cache) -> int:
        """Embed the queued images, or all that the catalog lists if some may be missing; return how many."""
        if not self._embeds or not await self._wanted():
            self._heard, self.behind = {}, True
            return 0
        heard, self._heard = list(self._heard.values()), {}
        if self.behind:
            return await self.embed_all(cache)
        done = 0
        try:
            for start in range(0, len(heard), AT_A_TIME):
                done += await self._embed_page(heard[start : start + AT_A_TIME], cache)
        except BaseException:
            self.behind = True
            raise
        return done

    async def embed_all(self, cache: Cache) -> int:
        """Try every image that the catalog lists as not embedded; return how many were embedded.

        Stop early if the embedder, the catalog or the blob store is unreachable.
        """
        done, after, listed = 0, "", set[str]()
        self.behind = False
        try:
            while self._embeds:
                page = await self._backends.catalog.entries.unembedded(AT_A_TIME, after)
                if not page:
                    self._setbacks.keep(listed)
                    break
                done += await self._embed_page(page, cache)
                listed.update(entry.id for entry in page)
                for entry_id in listed & self._heard.keys():  # queued during this loop, and already embedded
                    del self._heard[entry_id]
                after = page[-1].id
        except BaseException:
            self.behind = True
            raise
        return done

    async def _wanted(self) -> bool:
        if not self._start_something:
            if self._encoder is None:
                with suppress(TimeoutError):  # at the start, an embedder in this process may not serve yet
                    async with asyncio.timeout(TIMEOUT_S):
                        await self._context.channel("embedder").channel_ready()
                reply = await rpc.call(
                    self._embedder.EmbedText, pb.EmbedTextRequest(texts=["a picture"]), timeout_s=TIMEOUT_S
                )
                self._encoder = EncoderId(reply.encoder_hash, reply.encoder_weights)
            before = self._start_something
            profiles = self._backends.catalog.profiles
            self._start_something = await pictures_start(profiles, self._settings, self._encoder)
            if before is None and not self._start_something:
                log("cache_maintainer").info(
                    "images are not embedded: no served model was profiled on a served model's images",
                    rule="afterimage profile --model MODEL --images-from MODEL",
                )
        return bool(self._start_something)

    async def _embed_page(self, page: Sequence[Entry], cache: Cache) -> int:
        now = self._clock.monotonic()
        held = [entry for entry in page if cache.holds_picture(entry.id)]
        due = [entry for entry in held if self._setbacks.due(entry.id, now)]
        # missing images were just evicted, or their entries are still being inserted
        self.behind |= len(held) < len(page)
        return sum([await self._embed(entries, cache) for entries in calls(due, self._max_bytes)])

    async def _embed(self, entries: Sequence[Entry], cache: Cache) -> int:
        read = [(entry, data) for entry in entries if (data := await self._read(entry, cache)) is not None]
        return await self._send(read, cache) if read else 0

    async def _send(self, read: Sequence[tuple[Entry, bytes]], cache: Cache) -> int:
        """Embed these images in one call. On failure, split the batch in halves, so that one bad image fails alone."""
        try:
            reply = await self._ask([data for _, data in read])
        except UnavailableError:
            raise
        except AfterimageError as error:
            if len(read) == 1:
                await self._leave(read[0][0], error, cache)
                return 0
            half = len(read) // 2
            return await self._send(read[:half], cache) + await self._send(read[half:], cache)
        vectors = {entry.id: found.vector for (entry, _), found in zip(read, reply.embeddings, strict=True)}
        METRICS.pictures_embedded.inc(len(vectors))
        await cache.place_pictures(vectors, reply.encoder_hash)
        return len(vectors)

    async def _leave(self, entry: Entry, error: AfterimageError, cache: Cache) -> None:
        """Postpone an image that failed. An image that the embedder rejects as invalid leaves the window for good."""
        if isinstance(error, InvalidRequestError):
            log("cache_maintainer").warning("image not embedded", entry=entry.id, error=str(error))
            await cache.drop_picture(entry.id)
            return
        again_in_s = self._setbacks.failed(entry.id, self._clock.monotonic())
        log("cache_maintainer").warning("image not embedded", entry=entry.id, error=str(error), again_in_s=again_in_s)

    async def _read(self, entry: Entry, cache: Cache) -> bytes | None:
        try:
            return await self._backends.blobs.get(entry.picture_key, entry.picture_sha256)
        except (BlobMissingError, BlobCorruptError):
            await cache.lose(entry.id, 0, entry.picture_key)
            return None

    async def _ask(self, pictures: Sequence[bytes]) -> pb.EmbedImageResponse:
        reply: pb.EmbedImageResponse = await rpc.call(
            self._embedder.EmbedImage, pb.EmbedImageRequest(images=pictures), timeout_s=TIMEOUT_S
        )
        if len(reply.embeddings) != len(pictures):
            raise AfterimageError(
                f"the embedder returned {len(reply.embeddings)} embeddings for {len(pictures)} images; "
                "check its version and log"
            )
        return reply


async def pictures_start(profiles: Profiles, settings: Settings, encoder: EncoderId) -> bool:
    """Return whether some served model may start from images: a K table for images applies with this encoder (MoDM
    §5.2)."""
    if MODM.fits(encoder):
        return True
    cards = of_images(await asyncio.to_thread(served_cards, settings))
    await asyncio.to_thread(lambda: [card.weights_hash for card in cards.values()])  # hashing the weights takes a while
    for card in cards.values():
        tables = await load_image_tables(profiles, card, list(cards), settings.image_k_table_alpha)
        if any(table.fits(encoder) for table in measured_on(tables, card, cards.values())):
            return True
    return False


def calls(entries: Iterable[Entry], max_bytes: int) -> list[list[Entry]]:
    """Split entries into calls, in order: each call's images total at most `max_bytes`, or the call has one image."""
    found: list[list[Entry]] = []
    size = 0
    for entry in entries:
        more = entry.picture.bytes if entry.picture else 0
        if not found or size + more > max_bytes:
            found.append([])
            size = 0
        found[-1].append(entry)
        size += more
    return found
