"""A match predictor or retriever that is late, or answers nonsense, costs the hit; the picture's result says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import grpc
import pytest

from protos import common_pb2, match_predictor_pb2, retriever_pb2
from shared.domain.errors import UnavailableError
from shared.domain.types import PlanSource
from shared.models import find_card
from shared.service import Context
from tests.flows.conftest import Make
from tests.flows.house import House, house

MODEL, STEPS = "noop:", 10
Answer = Callable[[Any], Any]
"""From the request's bytes to the answer's."""


class Stranger:
    """Listens where a service should, and answers as it likes; whatever it is, a service keeps its name."""

    ports: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, name: str, proto: Any, method: str) -> None:
        self.name = name
        self.answer: Answer = nothing
        self.delay_s = 0.0
        (self._service,) = proto.DESCRIPTOR.services_by_name.values()
        self._method = method

    async def start(self, context: Context) -> None: ...

    def register(self, server: grpc.aio.Server) -> str:
        async def answered(request: bytes, _: Any) -> bytes:
            await asyncio.sleep(self.delay_s)
            return bytes(self.answer(request))

        handlers = {self._method: grpc.unary_unary_rpc_method_handler(answered, bytes, bytes)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service.full_name, handlers),))
        return str(self._service.full_name)

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


def planned(**changes: Any) -> Answer:
    """A hit on this request that could be one, but for the changes."""

    def answer(request: bytes) -> bytes:
        model = retriever_pb2.PlanRequest.FromString(request).model
        hit = {"source": common_pb2.PLAN_SOURCE_LATENT, "model": model, "start_step": 5, "state_key": "states/none"}
        plan = common_pb2.Plan(**{**hit, "weights_hash": find_card(MODEL).weights_hash, **changes})
        return retriever_pb2.PlanResponse(plan=plan).SerializeToString()

    return answer


def nothing(_: bytes) -> bytes:
    return b""


def no_message(_: bytes) -> bytes:
    return b"\xff" * 7


NOISE = planned(source=common_pb2.PLAN_SOURCE_NOISE, start_step=0, state_key="")
WRONG: dict[str, tuple[Answer, str]] = {
    "no message": (no_message, "retriever: the reply is no message"),
    "no plan": (nothing, "retriever: the plan must be for model "),
    "model": (planned(model="another"), "retriever: the plan must be for model "),
    "step": (planned(start_step=STEPS), "retriever: start_step of a plan from latent must be between 1 and 9 (got 10)"),
    "nothing named": (planned(state_key=""), "retriever: a plan with source latent must name its state_key"),
    "nan": (planned(fresh_noise=float("nan")), "retriever: fresh_noise must be"),
    "nobody draws it": (planned(miss_model="nobody's"), "retriever: the plan's miss_model must be"),
    "a picture": (
        planned(source=common_pb2.PLAN_SOURCE_EXACT),
        "retriever: the plan's source must be",
    ),
    # these could be plans: the worker finds out
    "no such blob": (planned(), "blobs: blob states/none: not there"),
    "a path": (planned(state_key="../../etc/passwd"), "blobs: key: "),
}
"""The retriever's answers, and how the note on the result begins."""


def house_of(make: Make, stranger: Any) -> AbstractAsyncContextManager[House]:
    return house(make(large=MODEL, call_timeout_s=0.5), without=[stranger.name], plus=[stranger])


async def noted(it: House, note: str) -> None:
    """The next picture is drawn from noise, and says so."""
    picture = await it.client.generate("a red fox", steps=STEPS)
    assert picture.png, note
    assert (picture.plan.source, picture.steps_run) == (PlanSource.NOISE, STEPS), note
    assert any(one.startswith(note) for one in picture.plan.degraded), (note, picture.plan.degraded)


async def test_a_wrong_retriever(make: Make) -> None:
    stranger = Stranger("retriever", retriever_pb2, "Plan")
    async with house_of(make, stranger) as it:
        for answer, note in WRONG.values():
            stranger.answer = answer
            await noted(it, note)
            stranger.answer = NOISE  # whoever is right once in a while is asked on
            assert (await it.client.generate("a red fox", steps=STEPS)).plan.degraded == ()


async def test_a_late_retriever(make: Make) -> None:
    stranger = Stranger("retriever", retriever_pb2, "Plan")
    stranger.delay_s = 5.0
    async with house_of(make, stranger) as it:
        await noted(it, "retriever: Deadline")
        with pytest.raises(UnavailableError, match=r"retriever: no plan from job 'j1' within 0.5 s; retry"):
            await it.client.generate("a red fox", from_job="j1")


@pytest.mark.parametrize(("answer", "delay_s"), [(no_message, 0.0), (nothing, 5.0)], ids=["wrong", "late"])
async def test_a_match_predictor_that_is_late_or_wrong_is_done_without(
    make: Make, answer: Answer, delay_s: float
) -> None:
    stranger = Stranger("match_predictor", match_predictor_pb2, "Predict")
    stranger.answer, stranger.delay_s = answer, delay_s
    async with house_of(make, stranger) as it:
        await noted(it, "match_predictor: ")
