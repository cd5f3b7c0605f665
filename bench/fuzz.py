"""Calls of every service with generated messages and bytes: it looks for crashes, wrong statuses and memory that stays.

    python -m bench.fuzz --count 100000
    python -m bench.fuzz --count 500          # does the command work?
    python -m bench.fuzz --only inner         # the services behind the gateway alone

Hypothesis draws a few calls, which run at the same time: a method, the caller's key, and messages of the method's type,
whose fields have usual, extreme and wrong values. Some messages are then damaged (bytes are changed, cut out and put
in), and some are nothing but bytes. Beside most calls a connection sends what is no gRPC. Calls that end in a wrong
status are shrunk to the least that still do. The server, with a no-op model, runs in a process of its own and takes no
call of the gateway, of reflection and of health without a key. The services behind the gateway are called over their
socket, as the gateway calls them.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import hypothesis
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.serving.processes import issue_key, one_process, resident_mib, scratch
from protos import (
    cache_maintainer_pb2,
    embedder_pb2,
    gateway_pb2,
    global_monitor_pb2,
    gpu_worker_pb2,
    match_predictor_pb2,
    retriever_pb2,
    segmenter_pb2,
    text_extractor_pb2,
)
from protos.gateway_pb2_grpc import GatewayServiceStub
from shared.domain.identity import Role
from shared.service.door import AUTHORIZATION, EVERY_S

OUTER = gateway_pb2, health_pb2, reflection_pb2
INNER = (
    cache_maintainer_pb2,
    embedder_pb2,
    global_monitor_pb2,
    gpu_worker_pb2,
    match_predictor_pb2,
    retriever_pb2,
    segmenter_pb2,
    text_extractor_pb2,
)
NOT_CALLED = {"Drain"}
"""After it the worker would take no job."""
ENDLESS = {"Allocation", "Watch"}
"""Streams that go on until the caller leaves."""


def _methods(files: Sequence[Any]) -> dict[str, MethodDescriptor]:
    services = [one for file in files for one in file.DESCRIPTOR.services_by_name.values()]
    found = {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}
    return {path: method for path, method in found.items() if method.name not in NOT_CALLED}


GROUPS = {"outer": _methods(OUTER), "inner": _methods(INNER)}
METHODS = {path: method for group in GROUPS.values() for path, method in group.items()}
WRONG = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "UNAVAILABLE"}
"""Statuses that no message may cause; UNAVAILABLE too: the server is there."""
SENT_TOO_LATE = "Internal error from Core"
"""Details that grpc.aio gives in place of the server's status, where a stream is refused while it is sent."""
TOO_LONG = "metadata size exceeds"
"""Details that grpc gives in place of an error that is too long for a client."""
AT_ONCE = 4
"""Most calls at the same time."""
FIELDS = 6
"""Most fields of a message."""
ROUND = 500
"""Examples of one seed: Hypothesis keeps what it has drawn, so each round begins anew."""
TIMEOUT_S, ENDLESS_S = 20.0, 0.05
WORDS = (
    "",
    "a red fox in the snow",
    "large",
    "acme",
    "🦊" * 3,
    "\x00",
    "../../etc/passwd",
    "'; --",
    "x" * 5000,
    "y" * 60_000,
)
SOME: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: st.sampled_from(WORDS) | st.text(max_size=40),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: st.sampled_from((0, 1, 2, 5, 64)) | st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.sampled_from((0, 1, 2, 5, 64)) | st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from((0, 1, 2, 5, 64)) | st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from((0, 1, 2, 5, 64)) | st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.sampled_from((0.0, 0.5, 1.0)) | st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from((0.0, 0.5, 1.0)) | st.floats(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-1, 9),
}
BYTES = st.sampled_from((b"", b"\x89PNG\r\n\x1a\n", bytes(70_000))) | st.binary(max_size=40)


@functools.cache
def messages(kind: Descriptor) -> st.SearchStrategy[Any]:
    """Return messages of this type with a few fields each: of more, nearly always one is refused."""
    if not kind.fields:
        return st.builds(message_factory.GetMessageClass(kind))
    some = {one.name: _values(one) for one in kind.fields}
    names = st.lists(st.sampled_from(sorted(some)), unique=True, max_size=FIELDS)
    given = names.flatmap(lambda chosen: st.fixed_dictionaries({name: some[name] for name in chosen}))
    return given.map(lambda values: message_factory.GetMessageClass(kind)(**values))


def _values(of: FieldDescriptor) -> st.SearchStrategy[Any]:
    if of.message_type is not None and of.message_type.GetOptions().map_entry:
        return st.dictionaries(*(_values(each) for each in of.message_type.fields), max_size=2)
    if of.message_type is not None:
        one = st.deferred(lambda: messages(of.message_type))
    else:
        one = BYTES if of.type == FieldDescriptor.TYPE_BYTES else SOME[of.cpp_type]
    return st.lists(one, max_size=3) if of.is_repeated else one


@st.composite
def _damaged(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """Draw a message, and change, cut out or put in a few bytes."""
    changed = bytearray(draw(messages(kind)).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        changed[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(changed)


@dataclass(frozen=True)
class Call:
    """One call. key: of whom, or the header's text itself; None: no header. messages: more than one of a stream."""

    path: str
    key: str | None
    messages: Sequence[bytes]


@st.composite
def calls(draw: st.DrawFn, paths: Sequence[str]) -> Call:
    path = draw(st.sampled_from(paths))
    method = METHODS[path]
    kind = method.input_type
    whole = messages(kind).map(lambda message: message.SerializeToString())
    one = st.one_of(whole, whole, whole, _damaged(kind), st.binary(max_size=2000))
    several = st.lists(one, max_size=3) if method.client_streaming else st.lists(one, min_size=1, max_size=1)
    who = st.sampled_from([Role.USER] * 20 + [*Role] + [None, "", "Bearer ", "Bearer aik_x_y", "Basic eDp5"])
    return Call(path, draw(who), draw(several))


@dataclass
class Calls:
    """Makes calls one round after the other, and counts how they end. keys: by role; inner: address of the services
    behind the gateway."""

    address: str
    keys: dict[str, str]
    inner: str
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    """Path, wrong status and details → the least calls that end so."""

    async def together(self, made: Sequence[Call], raw: bytes) -> None:
        """Make these calls at the same time. Raises AssertionError for a wrong status. raw: sent on a connection of its
        own, where there are any."""
        if raw:
            await self._raw(raw)
        async with grpc.aio.insecure_channel(self.address) as outer, grpc.aio.insecure_channel(self.inner) as inner:
            channels = [outer if one.path in GROUPS["outer"] else inner for one in made]
            ended = await asyncio.gather(*(self._call(*pair) for pair in zip(channels, made, strict=True)))
        for one, (status, details) in zip(made, ended, strict=True):
            self.statuses[status] += 1
            wrong = status in WRONG or TOO_LONG in details
            assert not wrong, f"{one.path}: {status}: {details[:200]}"

    async def _call(self, channel: grpc.aio.Channel, one: Call) -> tuple[str, str]:
        """Make a call and return its status and details."""
        method, header = METHODS[one.path], self.keys.get(str(one.key), one.key)
        kinds = {True: "stream", False: "unary"}
        shape = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
        make = getattr(channel, shape)(one.path)
        given = iter(one.messages) if method.client_streaming else one.messages[0]
        metadata = () if header is None else ((AUTHORIZATION, header),)
        limit_s = ENDLESS_S if method.name in ENDLESS else TIMEOUT_S
        started: Any = make(given, timeout=limit_s, metadata=metadata)
        try:
            if method.server_streaming:
                async for _ in started:
                    pass
            else:
                await started
        except grpc.aio.AioRpcError as error:
            lost = error.details() == SENT_TOO_LATE
            return ("refused while sending" if lost else error.code().name), error.details() or ""
        except asyncio.CancelledError:
            if not started.cancelled():
                raise
            return "refused while sending", ""  # grpc.aio cancels a call whose stream it can no longer send
        return "OK", ""

    async def _raw(self, sent: bytes) -> None:
        """Send bytes that are no gRPC, and close."""
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:
            raise AssertionError(f"no connection: {error}") from error
        writer.write(sent)
        writer.close()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RAW = st.just(b"") | st.binary(max_size=5000) | st.binary(max_size=5000).map(lambda sent: PREFACE + sent)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    settings = {"large": "noop:", "http_listen": "", "video": "", "segmenter": "", "log_level": "error"}
    with scratch() as folder, one_process({**settings, "allow_anonymous": "never"}, folder) as server:
        roles = {role: [role, Role.USER] if role is Role.PUBLISHER else [role] for role in Role}
        keys = {str(role): f"Bearer {issue_key(folder, str(role), 'acme', given)}" for role, given in roles.items()}
        time.sleep(2 * EVERY_S)  # until the server has read the keys
        figures = _rounds(Calls(server.url, keys, _inner(server.url, keys[Role.OPERATOR])), asked, server.pid)
        alive = server.alive
    return {**figures, "alive": alive, "exit_code": server.returned}


def _inner(address: str, key: str) -> str:
    """Return the address of the services behind the gateway."""
    with grpc.insecure_channel(address) as channel:
        locate = GatewayServiceStub(channel).Locate
        return str(locate(gateway_pb2.LocateRequest(), metadata=((AUTHORIZATION, key),)).internal_address)


def _rounds(calls_made: Calls, asked: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Make all calls; return statuses, wrong ones with an example each, and the memory on the way in MiB."""
    memory, seed = list[int](), asked.seed
    with asyncio.Runner() as runner:
        while (number := calls_made.statuses.total()) < asked.count:
            if number >= len(memory) * asked.count / 20:
                memory.append(resident_mib(pid))
                sys.stderr.write(f"{number} calls, {memory[-1]} MiB\n")
            try:
                _round(calls_made, sorted(GROUPS[asked.only] if asked.only else METHODS), seed, runner)
            except (AssertionError, hypothesis.errors.Flaky) as error:  # flaky: it did not happen again
                shrunk = "; ".join(getattr(error, "__notes__", ()))
                calls_made.wrong.setdefault(str(error)[:300], f"seed {seed}: {shrunk[:1000]}")
                if not resident_mib(pid):  # the server is gone, so all further calls would fail
                    break
            seed += 1
    memory.append(resident_mib(pid))
    return {"statuses": dict(calls_made.statuses.most_common()), "wrong": calls_made.wrong, "memory_mib": memory}


def _round(calls_made: Calls, paths: Sequence[str], seed: int, runner: asyncio.Runner) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(calls(paths), min_size=1, max_size=AT_ONCE), RAW)
    def tried(made: list[Call], raw: bytes) -> None:
        runner.run(calls_made.together(made, raw))

    tried()


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="calls")
    parser.add_argument("--seed", type=int, default=0, help="of the first 500 examples; the next 500 have the next one")
    parser.add_argument("--only", choices=sorted(GROUPS), help="services that clients may call, or those behind them")
    asked = parser.parse_args(given)
    quiet()
    on = machine()
    figures = measure(asked)
    print(table(["status", "calls"], list(figures["statuses"].items())))
    print(
        f"\nserver alive: {figures['alive']}, ended with {figures['exit_code']}; memory in MiB {figures['memory_mib']}"
    )
    for what, example in figures["wrong"].items():
        print(f"wrong: {what} ({example})")
    record("fuzz", figures, settings_of(asked), on=on, folder=asked.out)


if __name__ == "__main__":
    main()
