"""Spans where nobody takes them, and no spans where nobody asked for any."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from shared.domain.errors import ConfigurationError
from shared.runtime import tracing
from shared.runtime.settings import Settings
from shared.runtime.tracing import NO_SPAN, close_tracing, open_tracing
from shared.runtime.tracing.otlp import Tracer
from tests.collector import attributes, collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OFF = """
import asyncio, sys
from shared.bus import open_bus
from shared.domain.messages import JobSucceeded
from shared.runtime import rpc, tracing
from shared.runtime.settings import Settings
assert tracing.open_tracing(Settings(), "x") is None
tracing.served("x", {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, {})
async def publish():
    bus = await open_bus("inprocess:")
    await bus.publish(JobSucceeded("a", 1))
    await bus.close()
asyncio.run(publish())
assert tracing.span("x") is tracing.NO_SPAN and tracing.outgoing() == {}
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_off_imports_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    "wrong", ["localhost:4317", "http://localhost", "ftp://localhost:4317", "http://a:1/v1/traces"]
)
def test_an_endpoint_is_a_url_with_a_port(wrong: str) -> None:
    with pytest.raises(ValueError, match="trace_endpoint"):
        Settings(trace_endpoint=wrong)


def test_without_the_extra_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shared.runtime.tracing.otlp", None)
    with pytest.raises(ConfigurationError, match=r"afterimage\[tracing\]"):
        open_tracing(Settings(trace_endpoint="http://127.0.0.1:9"), "gateway")


@pytest.fixture
def silent() -> Iterator[str]:
    """A collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_collector_that_never_answers_delays_nothing(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr("shared.runtime.tracing.otlp.CLOSE_S", 0.1)
    tracer = open_tracing(Settings(trace_endpoint=silent, trace_ratio=1.0), "gateway")
    begun = time.monotonic()
    for _ in range(3000):  # more than the queue holds
        with tracing.served("call", {}, {}):
            pass
    close_tracing(tracer)
    assert time.monotonic() - begun < 10  # one export alone may take as long
    assert tracing.span("call") is NO_SPAN


async def test_spans_that_were_not_sent_are_logged_once(
    logs: list[MutableMapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.runtime.tracing.otlp.CLOSE_S", 0.1)
    tracer = Tracer("http://127.0.0.1:9", 1.0, "gateway")
    with tracer.root("call", {}):
        pass
    await asyncio.to_thread(tracer.close)
    lost = [(line["collector"], line["lost"]) for line in logs if line["event"] == "spans not sent"]
    assert lost == [("http://127.0.0.1:9", 1)]


async def test_a_failure_is_marked_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as it:
        tracer = open_tracing(Settings(trace_endpoint=it.address, trace_ratio=1.0), "gateway")
        with tracing.served("call", {}, {}) as root:
            with pytest.raises(ValueError, match="wombat"), tracing.span("stage"):
                raise ValueError("wombat")
            root.fail("INTERNAL")
        await asyncio.to_thread(close_tracing, tracer)
        assert attributes(it.one("stage")) == {"error.type": "ValueError"}
        assert attributes(it.one("call")) == {"error.type": "INTERNAL"}
        assert [span.status.code for span in it.spans] == [2, 2]
        assert "wombat" not in str(it.requests)


async def test_the_ratio_decides_and_the_parts_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as it:
        tracer = open_tracing(Settings(trace_endpoint=it.address, trace_ratio=0.5), "gateway")

        async def call() -> None:
            with tracing.served("call", {}, {}):
                with tracing.span("part"):
                    headers = tracing.outgoing()
                with tracing.served("elsewhere", headers, {}):
                    pass

        for _ in range(200):
            await asyncio.create_task(call())
        await asyncio.to_thread(close_tracing, tracer)
        assert 50 < len(it.spans) / 3 < 150
        assert it.edges == {("", "call"), ("call", "part"), ("part", "elsewhere")}


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": f"{PARENT}-later é", "tracestate": "a=é"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a" * 513}, {"traceparent": PARENT}),
        ({"traceparent": PARENT[:-3]}, {}),
        ({"traceparent": "wombat", "tracestate": "a=1"}, {}),
        ({"tracestate": "a=1"}, {}),
    ],
)
async def test_a_caller_s_headers_are_passed_on_if_they_are_w3c_s(
    given: dict[str, str], passed_on: dict[str, str]
) -> None:
    tracing.adopt(given)
    assert tracing.outgoing() == passed_on
