"""Serves Extract: cached prompts at once, other prompts in micro-batches (FlexCache §3.2, §4.2.1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias

import grpc

from protos import text_extractor_pb2 as pb
from protos import text_extractor_pb2_grpc as pb_grpc
from services.text_extractor import Extraction
from services.text_extractor.choice import open_extractor
from shared.domain.errors import InvalidRequestError
from shared.domain.parts import Parts
from shared.runtime.batching import MicroBatcher
from shared.runtime.sealed import SealedCache
from shared.runtime.telemetry import METRICS
from shared.service import Context
from shared.service.callers import MayCall

OwnPrompt: TypeAlias = tuple[str, str]
"""The scope key of a prompt's callers, and the prompt."""
MAX_PROMPTS = 16
"""Largest number of prompts per call."""


class TextExtractorService(pb_grpc.TextExtractorServiceServicer):
    name: ClassVar[str] = "text_extractor"
    callers: ClassVar[MayCall] = {"gateway": {"Extract"}}
    ports: ClassVar[frozenset[str]] = frozenset()

    async def start(self, context: Context) -> None:
        settings = self._settings = context.settings
        self._thread = ThreadPoolExecutor(1, "text_extractor")
        loop = asyncio.get_running_loop()
        self._extractor = await loop.run_in_executor(self._thread, open_extractor, settings)
        self._remembered = SealedCache(settings.extract_cache)
        self._prompts: MicroBatcher[OwnPrompt, pb.Parts] = MicroBatcher(self._run, seats=self._extractor.seats)

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_TextExtractorServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["TextExtractorService"].full_name

    async def drain(self) -> None:
        await self._prompts.close()

    async def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def Extract(self, request: pb.ExtractRequest, context: Any) -> pb.ExtractResponse:
        prompts = list(request.prompts)
        if len(prompts) > MAX_PROMPTS:
            raise InvalidRequestError("prompts", f"must have at most {MAX_PROMPTS} items per call", len(prompts))
        for number, prompt in enumerate(prompts):
            if len(prompt) > self._settings.max_prompt_chars:
                rule = f"must have at most {self._settings.max_prompt_chars} characters"
                raise InvalidRequestError(f"prompts[{number}]", rule, len(prompt))
        owner = request.owner
        found = {prompt: self._remembered.get(owner, prompt) for prompt in prompts}
        known = {prompt: pb.Parts.FromString(kept) for prompt, kept in found.items() if kept is not None}
        fresh = [prompt for prompt in found if prompt not in known]
        answers = await self._prompts.submit([(owner, prompt) for prompt in fresh])
        known |= zip(fresh, answers, strict=True)
        return pb.ExtractResponse(extractor=self._extractor.id, parts=[known[prompt] for prompt in prompts])

    async def _run(self, batch: list[OwnPrompt]) -> Sequence[pb.Parts]:
        def timed() -> list[Extraction]:
            start = time.monotonic()
            found = self._extractor.extract([prompt for _, prompt in batch])
            METRICS.stage_seconds.labels("extract_forward").observe(time.monotonic() - start)
            return found

        found = await asyncio.get_running_loop().run_in_executor(self._thread, timed)
        # here: callers may leave while their batch runs, and the next one has the answer
        answers = []
        for (owner, prompt), one in zip(batch, found, strict=True):
            answers.append(answer := _message(prompt, one))
            if one.lasting:
                self._remembered.put(owner, prompt, answer.SerializeToString())
        return answers


def _message(prompt: str, found: Extraction) -> pb.Parts:
    parts = found.parts(prompt) if found.sure else Parts()
    return pb.Parts(object=parts.object, background=parts.background, sure=found.sure)
