"""The cluster's overhead: what of a request was computing, whose processors it took, and the sum of a path's floors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.cluster_overhead import summary
from bench.serving.cluster_under_test import PARTS, sample
from bench.serving.path_floors import CALLS, COUNTED, Floors
from bench.serving.processes import cpu_seconds, grown, spent
from shared.domain.types import PlanSource, Timings


def picture(**timings: Any) -> Any:
    plan = SimpleNamespace(source=PlanSource.LATENT)
    return SimpleNamespace(plan=plan, steps_run=25, timings=Timings(**timings))


def test_computing_is_no_overhead_and_the_parts_are_all_of_it() -> None:
    timings = {
        "embed_s": 0.005, "predict_s": 0.001, "plan_s": 0.002, "accept_s": 0.006, "queue_s": 0.009, "fetch_s": 0.002,
        "encode_s": 0.0005, "denoise_s": 0.030, "decode_s": 0.0005, "store_s": 0.004,
    }  # fmt: skip
    one = sample(picture(**timings), total_s=0.070, step_s=0.001, forward_s=0.003)
    assert one.computing_s == pytest.approx(0.025 + 0.003 + 0.001)
    assert one.overhead_s == pytest.approx(0.041)
    assert one.parts["between"] == pytest.approx(0.005)
    assert one.parts["queue_s"] == pytest.approx(0.003)
    assert sum(one.parts.values()) == pytest.approx(one.overhead_s)
    slow = sample(picture(**timings), total_s=0.070, step_s=0.002, forward_s=0.003)
    assert slow.parts["between"] == 0.0  # a mean that others' slow steps raised takes off no more than it denoised
    found = summary([one, one], floors_ms=20.0)
    assert found["p50_floors"] == pytest.approx(2.05)
    assert set(found["parts_p50_ms"]) == {name for name, _ in PARTS}


def test_the_floor_is_the_sum_of_what_the_goal_names() -> None:
    floors = Floors.__new__(Floors)
    floors.taken = {call.name: [0.001, 0.002, 0.009] for call in CALLS}
    named = [call for call in CALLS if call.kind in COUNTED]
    assert floors.sum_ms() == pytest.approx(2.0 * len(named))
    assert floors.sum_ms((*COUNTED, "read", "rpc")) == pytest.approx(2.0 * (len(named) + 1 + 4))
    assert floors.chain_ms() == pytest.approx(2.0 * (len(named) + 1 + 4 - 2))  # two reads run beside another call
    assert all(call.why for call in CALLS)


def test_what_a_process_started_is_its_own() -> None:
    if not cpu_seconds({"here": os.getpid()}):
        pytest.skip("no /proc")
    burn = "import time\nend = time.process_time() + .4\nwhile time.process_time() < end: pass"
    script = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        before, end = cpu_seconds({"parent": parent.pid}), time.monotonic() + 60
        while spent(before, cpu_seconds({"parent": parent.pid}))["parent"] < 0.4:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()


def test_growth_is_summed_over_the_labels_that_were_not_named() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("call_seconds", "of calls", ["method", "code"], registry=registry)

    def page() -> Any:
        families = text_string_to_metric_families(generate_latest(registry).decode())
        return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}

    seconds.labels("Plan", "OK").observe(1.0)
    before = page()
    seconds.labels("Plan", "OK").observe(2.0)
    seconds.labels("Plan", "INTERNAL").observe(3.0)
    seconds.labels("Predict", "OK").observe(9.0)
    after = page()
    assert grown(before, after, "call_seconds_sum", method="Plan") == pytest.approx(5.0)
    assert grown(before, after, "call_seconds_count", method="Plan") == 2
