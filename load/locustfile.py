"""gRPC users for Locust: they play the sessions of a trace (closed loop), or send requests at given times (open loop).

    locust -f load/locustfile.py --headless -u 8 -r 2 -t 60s --host 127.0.0.1:50051
    locust -f load/locustfile.py --headless -t 60s --host 127.0.0.1:50051 --arrivals poisson:12

Closed loop: each of the `-u` users sends a request, waits for the image, thinks, and refines. A user retries a full
gateway after the delay that the gateway named. Open loop (`--arrivals`): requests are sent at the times of
load/arrivals.py, `-u` has no effect, and a refused request is not retried unless `--patience-s` is given. Statistics
count hit, miss, exact and failed, by the source of the start or the status code. `--host` takes several gateways:
`ip:port,ip:port`.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import gevent
import gevent.pool
import grpc
import grpc.experimental.gevent as grpc_gevent
from locust import User, constant, events, task
from locust.exception import StopUser

from load.arrivals import offered
from load.asking import CallFailedError, Outcome, answered, failed, message_of
from load.edit_structure import SESSION_GAP_S
from load.sessions import SHIPPED, Prompt, read_trace
from protos import gateway_pb2_grpc
from shared.client import IDEMPOTENCY_KEY, MAX_MESSAGE_BYTES
from shared.domain.errors import InvalidRequestError
from shared.runtime.addresses import target_of
from shared.runtime.rpc import channel_options

grpc_gevent.init_gevent()  # without this a waiting call would block every other user
gevent.get_hub().threadpool.maxsize = 1000  # each waiting call holds one thread; the default is 10

TIMEOUT_S = 300.0
REFUSED = "RESOURCE_EXHAUSTED"
"""Status code of a full service; such refusals do not fail a run."""
ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    def add(flag: str, variable: str, **more: Any) -> None:
        parser.add_argument(flag, env_var=f"AFTERIMAGE_LOAD_{variable}", **more)

    add("--trace", "TRACE", type=Path, default=SHIPPED, help="Session trace to play.")
    add(
        "--speed",
        "SPEED",
        type=float,
        default=60.0,
        help="Factor by which thinking and the trace's times are shortened.",
    )
    add("--cache", "CACHE", choices=("auto", "read", "write", "off"), default="auto", help="Cache mode of requests.")
    add("--steps", "STEPS", type=int, default=0, help="Steps of every request; 0: the trace's.")
    add("--arrivals", "ARRIVALS", default="", help="Open loop: poisson:RATE, ramp:FROM:TO (a second), or trace.")
    add("--seed", "SEED", type=int, default=0, help="Seed of the arrivals.")
    add("--patience-s", "PATIENCE_S", type=float, default=None,
        help="Seconds of retries after a refusal; default: 300 in sessions, 0 in an open loop.")  # fmt: skip
    add("--record", "RECORD", type=Path, default=None, help="File for every call, one JSON object a line.")


class Asking(User):
    """Base of both kinds of users: sends one request and reports its outcome to Locust."""

    abstract = True
    patience_s = inf

    def on_start(self) -> None:
        self.options: Any = self.environment.parsed_options
        if self.options.patience_s is not None:
            self.patience_s = self.options.patience_s
        options: list[tuple[str, Any]] = [*channel_options(MAX_MESSAGE_BYTES), ("grpc.service_config", ROUND_ROBIN)]
        self.channel = grpc.insecure_channel(target_of(self.host or "127.0.0.1:50051", "host"), options=options)
        self.gateway = gateway_pb2_grpc.GatewayServiceStub(self.channel)
        self.lot = random.Random()

    def on_stop(self) -> None:
        self.channel.close()

    def ask(self, row: Prompt, due: float | None = None) -> Outcome:
        """Send one request, and retry while the outcome allows retries and patience is left.

        All tries share one idempotency key, so at most one image is generated. `due` is the time at which the request
        should have been sent, on the monotonic clock.
        """
        key = uuid.uuid4().hex
        message = message_of(row, cache=self.options.cache, steps=self.options.steps)
        give_up = time.monotonic() + self.patience_s
        while True:
            outcome = self._once(message, key, due)
            if outcome.again_s is None or time.monotonic() + outcome.again_s > give_up:
                return outcome
            gevent.sleep(outcome.again_s)

    def _once(self, message: Any, key: str, due: float | None) -> Outcome:
        start, metadata, outcome = time.monotonic(), ((IDEMPOTENCY_KEY, key),), UNANSWERED
        try:
            outcome = answered(self.gateway.Generate(message, timeout=TIMEOUT_S, metadata=metadata))
        except grpc.RpcError as error:
            outcome = failed(error, self.lot)
        finally:
            seconds = time.monotonic() - start
            if self.options.record is not None:
                late_s = 0.0 if due is None else start - due
                RECORDED.append(
                    {"key": key, "at": start, "seconds": seconds, "late_s": late_s,
                     "kind": outcome.kind, "name": outcome.name, "delay_s": outcome.delay_s}
                )  # fmt: skip
        self.environment.events.request.fire(
            request_type=outcome.kind,
            name=outcome.name,
            response_time=seconds * 1000,  # Locust counts milliseconds
            response_length=outcome.picture_bytes,
            exception=None if outcome.drawn else CallFailedError(outcome.name),
        )
        return outcome


UNANSWERED = Outcome("unanswered", "unanswered")
"""Outcome recorded for a call that the end of the run interrupted."""
RECORDED: list[dict[str, Any]] = []
"""Every call of this run, with times on the monotonic clock."""


class Refiner(Asking):
    """Plays one user of the trace after the other."""

    patience_s = 300.0
    _sessions: Iterator[list[Prompt]] | None = None

    @task
    def session(self) -> None:
        if Refiner._sessions is None:
            Refiner._sessions = sessions(read_trace(self.options.trace))
        asked = next(Refiner._sessions)
        self._asked(asked[0])
        for before, after in pairwise(asked):
            gevent.sleep(min(after.arrival_s - before.arrival_s, SESSION_GAP_S) / self.options.speed)
            self._asked(after)

    def _asked(self, row: Prompt) -> None:
        if self.ask(row).name == "INVALID_ARGUMENT":
            raise StopUser  # the model cannot generate this size or these steps; a retry would fail too


class Arrivals(Asking):
    """Sends all rows of the trace in order, at the times of `--arrivals`."""

    fixed_count = 1
    patience_s = 0.0
    wait_time = constant(0)

    @task
    def all(self) -> None:
        rows = read_trace(self.options.trace)
        recorded = [row.arrival_s for row in rows]
        duration_s = float(self.options.run_time or 3600)
        times = offered(self.options.arrivals, duration_s, recorded, speed=self.options.speed, seed=self.options.seed)
        asking, begun = gevent.pool.Group(), time.monotonic()
        try:
            for at, row in zip(times, itertools.cycle(rows), strict=False):
                gevent.sleep(max(begun + at - time.monotonic(), 0.0))
                asking.spawn(self.ask, row, begun + at)
            asking.join()
        finally:
            asking.kill()
        raise StopUser


def sessions(rows: list[Prompt]) -> Iterator[list[Prompt]]:
    """Yield each user's requests, users in order of their first request, in an endless cycle."""
    by_user: dict[int, list[Prompt]] = defaultdict(list)
    for row in rows:
        by_user[row.user].append(row)
    return itertools.cycle(by_user.values())


@events.init.add_listener
def _one_kind_of_users(environment: Any, **_: Any) -> None:
    """Choose one kind of users, because Locust starts every class in this file; refuse a wrong `--arrivals` early."""
    gevent.get_hub().loop.update_now()  # imports leave gevent's clock behind, and the run time is counted from it
    options = environment.parsed_options
    environment.user_classes[:] = [Arrivals if options.arrivals else Refiner]
    if options.arrivals:
        try:
            offered(options.arrivals, 1.0, [0.0, 1.0], speed=options.speed)
        except InvalidRequestError as error:
            raise SystemExit(f"--arrivals: {error}") from None


@events.quitting.add_listener
def _told(environment: Any, **_: Any) -> None:
    """Print one line of results; the run fails without images, and for failures other than refusals."""
    total, kinds, refused = environment.stats.total, Counter[str](), 0
    for (name, kind), entry in environment.stats.entries.items():
        kinds[kind] += entry.num_requests
        refused += entry.num_failures if name == REFUSED else 0
    drawn, seconds = total.num_requests - total.num_failures, max(total.last_request_timestamp or 0, 0)
    seconds = max(seconds - total.start_time, 1e-9)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"images: {drawn} in {seconds:.0f} s, {drawn / seconds:.2f} a second ({by_kind or 'no requests'})")
    if environment.parsed_options.record is not None:
        lines = "".join(json.dumps(one) + "\n" for one in RECORDED)
        environment.parsed_options.record.write_text(lines)
    environment.process_exit_code = 0 if drawn and total.num_failures == refused else 1
