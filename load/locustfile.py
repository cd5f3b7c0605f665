"""gRPC users for Locust who play the sessions of a trace: each asks, waits for the picture, thinks, and refines.

    locust -f load/locustfile.py --headless -u 8 -r 2 -t 60s --host 127.0.0.1:50051

`AFTERIMAGE_LOAD_TRACE` names another trace, `AFTERIMAGE_LOAD_SPEED` divides the time users think (default 60),
`AFTERIMAGE_LOAD_CACHE` is auto or off, `AFTERIMAGE_LOAD_STEPS` overrides the steps of the trace.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gevent
import grpc
import grpc.experimental.gevent as grpc_gevent
from locust import User, events, task
from locust.exception import StopUser

from load.edit_structure import SESSION_GAP_S
from load.sessions import SHIPPED, Prompt, read_trace
from protos import common_pb2, gateway_pb2, gateway_pb2_grpc

grpc_gevent.init_gevent()  # without it a waiting call would hold every other user

TRACE = Path(os.environ.get("AFTERIMAGE_LOAD_TRACE", SHIPPED))
SPEED = float(os.environ.get("AFTERIMAGE_LOAD_SPEED", "60"))
STEPS = int(os.environ.get("AFTERIMAGE_LOAD_STEPS", "0"))
CACHE = {"auto": common_pb2.CACHE_MODE_AUTO, "off": common_pb2.CACHE_MODE_OFF}[
    os.environ.get("AFTERIMAGE_LOAD_CACHE", "auto")
]
TIMEOUT_S = 300.0


def sessions(rows: list[Prompt]) -> Iterator[list[Prompt]]:
    """Each user's requests in order of their first one, over and over."""
    by_user: dict[int, list[Prompt]] = defaultdict(list)
    for row in rows:
        by_user[row.user].append(row)
    return itertools.cycle(by_user.values())


_SESSIONS = sessions(read_trace(TRACE))


class Refiner(User):
    """One user of the trace; when its prompts are asked, the next user of the trace takes its place."""

    def on_start(self) -> None:
        self.channel = grpc.insecure_channel(self.host or "127.0.0.1:50051")
        self.gateway = gateway_pb2_grpc.GatewayServiceStub(self.channel)

    def on_stop(self) -> None:
        self.channel.close()

    @task
    def session(self) -> None:
        asked = next(_SESSIONS)
        self.generate(asked[0])
        for before, after in pairwise(asked):
            gevent.sleep(min(after.arrival_s - before.arrival_s, SESSION_GAP_S) / SPEED)
            self.generate(after)

    def generate(self, row: Prompt) -> None:
        """One request, reported to Locust under where its picture started."""
        request = gateway_pb2.GenerateRequest(
            request=common_pb2.Request(
                prompt=row.prompt,
                width=row.width,
                height=row.height,
                steps=STEPS or row.steps,
                seed=row.seed,
                user=str(row.user),
                cache=CACHE,
            )
        )
        start, name, length, failure = time.monotonic(), "not answered", 0, None
        try:
            response = self.gateway.Generate(request, timeout=TIMEOUT_S)
            source = common_pb2.PlanSource.Name(response.job.plan.source)
            name, length = f"from {source.removeprefix('PLAN_SOURCE_').lower()}", len(response.picture)
        except grpc.RpcError as error:
            failure = error
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                gevent.sleep(1.0)
        self.environment.events.request.fire(
            request_type="Generate",
            name=name,
            response_time=(time.monotonic() - start) * 1000,  # Locust counts in milliseconds
            response_length=length,
            exception=failure,
        )
        if isinstance(failure, grpc.RpcError) and failure.code() == grpc.StatusCode.INVALID_ARGUMENT:
            raise StopUser  # the trace asks for what this model cannot draw; asking again would not help


@events.quitting.add_listener
def _fail_when_nothing_was_drawn(environment: Any, **_: Any) -> None:
    """A run without one picture is a failed run."""
    total = environment.stats.total
    if total.num_requests == total.num_failures:
        environment.process_exit_code = 1
