"""The text extractor, asked over real gRPC."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from protos import text_extractor_pb2 as pb
from protos.text_extractor_pb2_grpc import TextExtractorServiceStub
from services.text_extractor import Extraction
from services.text_extractor.service import MAX_PROMPTS, TextExtractorService
from shared.domain.errors import DeadlineError, InvalidRequestError
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.service import running

FOX = "a red fox runs to the left in the snow at night, pixel art"


@contextlib.asynccontextmanager
async def house(
    settings: Settings, extractor: str = "grammar", **more: object
) -> AsyncIterator[tuple[TextExtractorService, TextExtractorServiceStub]]:
    service = TextExtractorService()
    chosen = settings.model_copy(update={"extractor": extractor, **more})
    async with running([service], chosen) as process, grpc.aio.insecure_channel(process.address) as channel:
        yield service, TextExtractorServiceStub(channel)


async def test_parts_come_in_the_order_of_the_prompts(settings: Settings) -> None:
    async with house(settings) as (_, stub):
        reply = await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX, "a dog", FOX]), timeout_s=10)
        fox, dog, again = reply.parts
        assert (fox.object, fox.background, fox.sure) == ("a red fox runs to the left", "in the snow at night", True)
        assert (dog.object, dog.background, dog.sure) == ("a dog", "", True)
        assert again == fox
        assert reply.extractor == "grammar"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", pb.Parts()),
        ("   ", pb.Parts()),
        ("🦊🌲", pb.Parts()),
        ("一只狐狸在森林里奔跑", pb.Parts()),  # the grammar names a piece, and is not sure
        ("w" * 2000, pb.Parts(object="w" * 2000, sure=True)),
    ],
)
async def test_an_unsure_answer_has_no_parts(settings: Settings, prompt: str, expected: pb.Parts) -> None:
    async with house(settings, extractor="") as (_, stub):
        (off,) = (await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[prompt]), timeout_s=10)).parts
    async with house(settings) as (_, stub):
        (parts,) = (await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[prompt]), timeout_s=10)).parts
    assert off == pb.Parts()
    assert parts == expected


@pytest.mark.parametrize(("kept", "calls"), [(8, [[FOX]]), (0, [[FOX], [FOX]])])
async def test_a_prompt_is_extracted_once(settings: Settings, kept: int, calls: list[list[str]]) -> None:
    async with house(settings, extract_cache=kept) as (service, stub):
        seen, extract = list[list[str]](), service._extractor.extract
        service._extractor.extract = lambda prompts: seen.append(list(prompts)) or extract(prompts)  # type: ignore[method-assign,func-returns-value]
        for _ in range(2):
            await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX]), timeout_s=10)
        assert seen == calls
        await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX], owner="tenant:b"), timeout_s=10)
        assert seen == [*calls, [FOX]]  # another caller must not learn from the time that somebody asked before


async def test_an_answer_that_comes_too_late_is_there_for_the_next(settings: Settings) -> None:
    async with house(settings) as (service, stub):
        seen, extract = list[str](), service._extractor.extract

        def slow(prompts: Sequence[str]) -> list[Extraction]:
            seen.extend(prompts)
            time.sleep(0.3)
            return extract(prompts)

        service._extractor.extract = slow  # type: ignore[method-assign]
        with pytest.raises(DeadlineError):
            await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX]), timeout_s=0.1)
        await service._prompts.close()
        (parts,) = (await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX]), timeout_s=10)).parts
        assert (parts.sure, seen) == (True, [FOX])


async def test_a_prompt_without_an_answer_is_asked_again(settings: Settings) -> None:
    async with house(settings) as (service, stub):
        answers = [Extraction(lasting=False), Extraction((0, 9), None, True)]
        service._extractor.extract = lambda prompts: [answers.pop(0)]  # type: ignore[method-assign]
        for sure in (False, True, True):
            (parts,) = (await rpc.call(stub.Extract, pb.ExtractRequest(prompts=[FOX]), timeout_s=10)).parts
            assert parts.sure is sure


async def test_bad_input_names_field_and_rule(settings: Settings) -> None:
    async with house(settings) as (_, stub):
        for prompts, field in (
            (["x"] * (MAX_PROMPTS + 1), "prompts: must have at most"),
            (["x" * 2001], r"prompts\[0\]"),
        ):
            with pytest.raises(InvalidRequestError, match=field):
                await rpc.call(stub.Extract, pb.ExtractRequest(prompts=prompts), timeout_s=10)
