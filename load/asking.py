"""One request of a trace as a gRPC message, and what came of it in words that statistics can be kept by."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import grpc

from load.sessions import Prompt
from protos import common_pb2, gateway_pb2
from shared.client.request_fields import RequestFields, request_message
from shared.runtime.rpc import from_rpc_error

KINDS = {"noise": "miss", "latent": "hit", "image": "hit", "stitched": "hit", "exact": "exact"}
"""Where a picture started → what that is called in the statistics."""
COMES_BACK = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
"""Codes after which the same request is worth asking again."""
DEFAULT_DELAY_S = 1.0
"""Pause before that where the gateway named none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call ended with: `kind` is hit, miss, exact or failed; `name` where the picture started, or the status
    code. Both have few values, so that a million requests are a dozen lines of statistics."""

    kind: str
    name: str
    picture_bytes: int = 0
    again_s: float | None = None
    """Seconds after which it is worth asking again; None: it is not."""
    delay_s: float | None = None
    """The delay that the gateway itself named."""

    @property
    def drawn(self) -> bool:
        return self.kind != "failed"


class CallFailedError(Exception):
    """How a failure is told to Locust, which counts equal texts together: the status code, without the message."""


def message_of(row: Prompt, *, cache: str, steps: int = 0) -> gateway_pb2.GenerateRequest:
    """The row's request; `steps` 0 leaves those of the trace. Raises InvalidRequestError for an unknown cache mode."""
    mode: Any = cache  # as it was typed; what is no mode is said by name
    fields: RequestFields = {
        "width": row.width,
        "height": row.height,
        "steps": steps or row.steps,
        "seed": row.seed,
        "user": str(row.user),
        "cache": mode,
    }
    return gateway_pb2.GenerateRequest(request=request_message(row.prompt, **fields))


def answered(reply: gateway_pb2.GenerateResponse) -> Outcome:
    source = common_pb2.PlanSource.Name(reply.job.plan.source).removeprefix("PLAN_SOURCE_").lower()
    return Outcome(KINDS.get(source, "miss"), f"from {source}", len(reply.picture))


def failed(error: grpc.RpcError, lot: random.Random) -> Outcome:
    """The gateway's own delay, spread out a little so that those it sent away together do not come back together."""
    call: Any = error  # every error of a call is a call too
    code = call.code().name
    delay_s = from_rpc_error(error).retry_after_s
    again_s = (delay_s or DEFAULT_DELAY_S) * lot.uniform(1.0, 1.3) if code in COMES_BACK else None
    return Outcome("failed", code, again_s=again_s, delay_s=delay_s)
