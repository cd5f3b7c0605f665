"""`bench.fuzz` draws calls that parse, and reports a wrong status with the least call that ends so."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import message_factory
from hypothesis import given, settings

from bench import fuzz
from bench.fuzz import METHODS, Call, Calls, calls, messages
from scripts.stack.servers import free_port


@settings(max_examples=30)
@given(calls(sorted(METHODS)))
def test_a_call_is_one_that_its_method_takes(call: Call) -> None:
    method = METHODS[call.path]
    assert method.client_streaming or len(call.messages) == 1


GATEWAY = "/afterimage.gateway.v1.GatewayService/"


@pytest.mark.parametrize("name", ["ListJobs", "Erase"])
def test_messages_parse_and_have_all_fields_in_time(name: str) -> None:
    kind, seen = METHODS[f"{GATEWAY}{name}"].input_type, set[str]()

    @settings(max_examples=100, database=None)
    @given(messages(kind))
    def drawn(message: object) -> None:
        read = message_factory.GetMessageClass(kind).FromString(message.SerializeToString())  # type: ignore[attr-defined]
        seen.update(field.name for field, _ in read.ListFields())

    drawn()
    assert seen == {field.name for field in kind.fields}


def test_what_must_not_happen_is_shrunk_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(self: Calls, channel: Any, one: Call) -> tuple[str, str]:
        return ("INTERNAL" if one.path == f"{GATEWAY}Erase" else "OK"), "broken"

    monkeypatch.setattr(Calls, "_call", answered)
    monkeypatch.setattr(Calls, "_raw", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(fuzz, "ROUND", 100)
    found = fuzz._rounds(
        Calls("127.0.0.1:1", {}, "127.0.0.1:1"), argparse.Namespace(count=50, seed=1, only="outer"), os.getpid()
    )
    ((what, example),) = found["wrong"].items()
    assert what.startswith(f"{GATEWAY}Erase: INTERNAL: broken")
    assert example.count("Call(") == 1


def test_nothing_is_tried_on_once_the_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def fails(calls_made: Calls, paths: Any, seed: int, runner: Any) -> None:
        tried.append(seed)
        raise AssertionError("gone")

    monkeypatch.setattr(fuzz, "_round", fails)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = fuzz._rounds(
        Calls("127.0.0.1:1", {}, "127.0.0.1:1"), argparse.Namespace(count=50, seed=1, only="outer"), ended.pid
    )
    assert (tried, [*found["wrong"]]) == ([1], ["gone"])


async def test_a_server_that_is_gone_is_reported() -> None:
    with pytest.raises(AssertionError, match="no connection"):
        await Calls(f"127.0.0.1:{free_port()}", {}, "").together([], b"no gRPC")
