"""Turn a row of a trace into a gRPC request, and the reply into an outcome for statistics."""

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
"""Kind of a request in the statistics, by the source of the image's start."""
COMES_BACK = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
"""Status codes after which the client retries."""
DEFAULT_DELAY_S = 1.0
"""Delay before a retry, seconds, if the gateway names none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one call.

    `kind` is hit, miss, exact or failed; `name` is the source of the start, or the status code. Both have few values,
    so the statistics stay at a dozen lines.
    """

    kind: str
    name: str
    picture_bytes: int = 0
    again_s: float | None = None
    """Delay before a retry, seconds; None: do not retry."""
    delay_s: float | None = None
    """Delay that the gateway named, seconds; None: the gateway named none."""

    @property
    def drawn(self) -> bool:
        return self.kind != "failed"


class CallFailedError(Exception):
    """Failure for Locust, which counts equal texts together: the status code without the message."""


def message_of(row: Prompt, *, cache: str, steps: int = 0) -> gateway_pb2.GenerateRequest:
    """Return the row's request; `steps` 0 keeps the trace's. Raises InvalidRequestError for an unknown cache mode."""
    mode: Any = cache  # unchecked here; request_message refuses an unknown mode
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
    """Return the outcome of a failed call; its retry delay has jitter, so refused clients do not return together."""
    call: Any = error  # every grpc.RpcError of a call is also a grpc.Call
    code = call.code().name
    delay_s = from_rpc_error(error).retry_after_s
    again_s = (delay_s or DEFAULT_DELAY_S) * lot.uniform(1.0, 1.3) if code in COMES_BACK else None
    return Outcome("failed", code, again_s=again_s, delay_s=delay_s)
