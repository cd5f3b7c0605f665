"""The text extractor in the process that `afterimage up` starts, as the gateway reaches it."""

from typing import Any

from protos import text_extractor_pb2
from protos.text_extractor_pb2_grpc import TextExtractorServiceStub
from shared.runtime.settings import Settings
from tests.flows.house import house


async def test_the_one_process_extracts_parts(settings: Settings) -> None:
    async with house(settings.model_copy(update={"large": "noop:", "video": ""})) as it:
        stub: Any = TextExtractorServiceStub(it.process.context.channel("text_extractor"))
        request = text_extractor_pb2.ExtractRequest(prompts=["a red fox hops in the snow"])
        (parts,) = (await stub.Extract(request, timeout=10.0)).parts
        assert (parts.object, parts.background, parts.sure) == ("a red fox hops", "in the snow", True)
