"""The figures of `bench.tracing` are medians over rounds, and the shares are of the same round."""

from __future__ import annotations

import pytest

from bench.tracing import Block, figures_of


def test_shares_are_of_the_same_round() -> None:
    off = [Block(0.010, 0.005), Block(0.020, 0.010), Block(0.030, 0.015)]
    traced = [Block(0.011, 0.006), Block(0.022, 0.012), Block(0.099, 0.018)]
    figures = figures_of({"off": off, "10 %": traced})
    assert figures["off"] == pytest.approx({"latency_ms": 20, "cpu_ms": 10, "latency_share": 1, "cpu_share": 1})
    assert figures["10 %"] == pytest.approx({"latency_ms": 22, "cpu_ms": 12, "latency_share": 1.1, "cpu_share": 1.2})
