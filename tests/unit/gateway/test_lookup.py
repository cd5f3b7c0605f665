"""A gateway of a setup without a text extractor, whose other services are away too."""

import pytest

from services.gateway.lookup import Lookup
from shared.domain.types import Modality, Request, Size
from shared.models.card import ModelCard
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import open_backends

CLIPS = ModelCard(name="clips", path="noop:", role="video")
CLOSED = dict.fromkeys(("embedder_address", "match_predictor_address", "retriever_address"), "127.0.0.1:9")


@pytest.mark.parametrize(
    ("setting", "modality", "said"),
    [
        ({}, Modality.VIDEO, ["text_extractor: text_extractor_address is not set"]),
        ({}, Modality.IMAGE, []),
        ({"decouple": "off"}, Modality.VIDEO, []),
        ({"extractor": ""}, Modality.VIDEO, []),
    ],
)
async def test_a_gateway_starts_without_an_extractor(
    settings: Settings, setting: dict[str, str], modality: Modality, said: list[str]
) -> None:
    changed = settings.model_copy(update={**CLOSED, **setting})
    backends = await open_backends(changed, frozenset())
    context = Context(changed, backends)
    try:
        request = Request("a red fox in the snow", Size(64, 64), 10, 1.0, 1, modality=modality)
        (planned,) = await Lookup(context, ()).plan([request], CLIPS)
        assert planned.plan is not None
        assert planned.parts is None
        assert [one for one in planned.plan.degraded if one.startswith("text_extractor")] == said
        assert any(one.startswith("retriever") for one in planned.plan.degraded)
    finally:
        await context.close()
        await backends.close()
