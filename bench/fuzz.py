"""Calls of the gateway with random messages and bytes: it looks for crashes, wrong statuses and memory that stays.

    python -m bench.fuzz --count 100000
    python -m bench.fuzz --count 500          # does the command work?

A call takes a random method and a random message of its type: fields with usual, extreme and wrong values. A third of
the messages is then damaged (bytes are changed, cut out and put in), and a tenth is nothing but random bytes. One
connection in a hundred calls speaks no gRPC at all. The server, with a no-op model, runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.serving.processes import one_process, resident_mib, scratch
from protos import gateway_pb2
from shared.runtime.loop import run

GATEWAY = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"]
WRONG = {"UNKNOWN", "INTERNAL", "DATA_LOSS", "UNAVAILABLE"}
"""Statuses that no message may cause; UNAVAILABLE too: the server is there."""
SENT_TOO_LATE = "Internal error from Core"
"""Details that grpc.aio gives in place of the server's status, where a stream is refused while it is sent."""
AT_ONCE = 8
TIMEOUT_S = 20.0
DEEPEST = 4
WORDS = (
    "",
    "a red fox in the snow",
    "large",
    "acme",
    "🦊" * 3,
    "\x00",
    "../../etc/passwd",
    "'; --",
    "%s%n{}",
    "x" * 5000,
)
WHOLE = (0, 1, 2, 5, 64, 96, -1, 2**31 - 1, -(2**31))
UNSIGNED = (0, 1, 2, 5, 64, 2**32 - 1)
LONG = (*UNSIGNED, 2**63 - 1)
REAL = (0.0, 0.5, 1.0, 2.5, -1.0, 1e300, float("inf"), float("nan"))
VALUES: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: WORDS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_INT32: WHOLE,
    FieldDescriptor.CPPTYPE_INT64: (*WHOLE, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: UNSIGNED,
    FieldDescriptor.CPPTYPE_UINT64: (*LONG, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: REAL[:5],
    FieldDescriptor.CPPTYPE_DOUBLE: REAL,
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 3, 99, -1),
}


def filled(draw: random.Random, kind: Descriptor, depth: int = 0) -> Any:
    """Return a random message of this type."""
    message = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        if draw.random() < 0.5 or depth >= DEEPEST:
            continue
        values = [_value(draw, field, depth) for _ in range(draw.randint(0, 3) if field.is_repeated else 1)]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(values[0])
        else:
            setattr(message, field.name, values[0])
    return message


def _value(draw: random.Random, field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is not None:
        return filled(draw, field.message_type, depth + 1)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 100, 70_000)))
    return draw.choice(VALUES[field.cpp_type])


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Change, cut out or put in a few bytes."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(changed))
        match draw.randint(0, 2):
            case 0:
                changed[at : at + 1] = draw.randbytes(1)
            case 1:
                del changed[at : at + draw.randint(1, 8)]
            case _:
                changed[at:at] = draw.randbytes(draw.randint(1, 8))
    return bytes(changed)


def message_of(draw: random.Random, method: MethodDescriptor) -> bytes:
    luck = draw.random()
    if luck < 0.1:
        return draw.randbytes(draw.randint(0, 2000))
    data: bytes = filled(draw, method.input_type).SerializeToString()
    return damaged(draw, data) if luck < 0.4 else data


async def call(channel: grpc.aio.Channel, draw: random.Random, method: MethodDescriptor) -> tuple[str, str]:
    """Make a call and return its status and details."""
    kinds = {True: "stream", False: "unary"}
    shape = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
    make = getattr(channel, shape)(f"/{method.containing_service.full_name}/{method.name}")
    messages = [message_of(draw, method) for _ in range(draw.randint(0, 3) if method.client_streaming else 1)]
    started: Any = make(iter(messages) if method.client_streaming else messages[0], timeout=TIMEOUT_S)
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


async def raw(address: str, draw: random.Random) -> None:
    """Send bytes that are no gRPC, and close."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if draw.random() < 0.5 else b""
    writer.write(preface + draw.randbytes(draw.randint(1, 5000)))
    writer.close()


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    settings = {"large": "noop:", "http_listen": "", "video": "", "segmenter": "", "log_level": "error"}
    with scratch() as folder, one_process(settings, folder) as server:
        async with grpc.aio.insecure_channel(server.url) as channel:
            found = await _calls(channel, server.url, asked, server.pid)
        alive = server.alive
    return {**found, "alive": alive, "exit_code": server.returned}


async def _calls(channel: grpc.aio.Channel, address: str, asked: argparse.Namespace, pid: int) -> dict[str, Any]:
    """Make all calls; return statuses, wrong ones with an example each, and the memory on the way in MiB."""
    statuses, wrong, memory = Counter[str](), dict[str, str](), list[int]()
    numbers = iter(range(asked.count))

    async def one() -> None:
        for number in numbers:
            draw = random.Random(f"{asked.seed}/{number}")
            method = draw.choice(GATEWAY.methods)
            status, details = await call(channel, draw, method)
            statuses[status] += 1
            if status in WRONG:
                wrong.setdefault(f"{method.name}: {status}: {details[:200]}", f"call {number}")
            if number % 100 == 0:
                await raw(address, draw)
            if number % max(asked.count // 20, 1) == 0:
                memory.append(resident_mib(pid))
                sys.stderr.write(f"{number} calls, {memory[-1]} MiB\n")

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return {"statuses": dict(statuses.most_common()), "wrong": wrong, "memory_mib": memory}


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="calls")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(given)
    quiet()
    on = machine()
    figures = run(measure(asked))
    print(table(["status", "calls"], list(figures["statuses"].items())))
    print(
        f"\nserver alive: {figures['alive']}, ended with {figures['exit_code']}; memory in MiB {figures['memory_mib']}"
    )
    for what, example in figures["wrong"].items():
        print(f"wrong: {what} ({example})")
    record("fuzz", figures, settings_of(asked), on=on, folder=asked.out)


if __name__ == "__main__":
    main()
