"""From answers and verdicts to figures: exact repeats apart, quality against the same prompts from noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from bench.measuring.judging import Verdict, accuracy
from bench.overhead import PARTS, sample, summary
from bench.traced.closed_loop import Drawn
from bench.traced.trace_figures import figures_of, plots, report, steps_saved
from load.sessions import Prompt, make_trace
from shared.models.scenes import ATTRIBUTES


@cache
def traced() -> list[Prompt]:
    """Made by the first test, not by every worker that collects them."""
    return make_trace(6, 1)


def answer(index: int, source: str, start_step: int, steps_run: int) -> Drawn:
    return Drawn(index, source, start_step, 50, steps_run, 0.9, 1, 2.0, "", (), {})


CACHE = {
    0: answer(0, "noise", 0, 50),
    1: answer(1, "latent", 10, 40),
    2: answer(2, "latent", 25, 25),
    3: answer(3, "exact", 0, 0),
    4: answer(4, "latent", 25, 25),
}
RIGHT = dict.fromkeys(ATTRIBUTES, True)


def test_exact_repeats_are_counted_apart() -> None:
    saved = steps_saved(CACHE.values())
    assert saved["steps_asked"] == 200
    assert saved["steps_run"] == 140
    assert saved["steps_saved"] == pytest.approx(0.3)
    assert saved["steps_saved_with_exact"] == pytest.approx(1 - 140 / 250)
    assert saved["steps_run_on_average"] == 35


def test_quality_is_against_the_same_prompts_from_noise(tmp_path: Path) -> None:
    noise = {index: Verdict(0.6 if index in (1, 2, 4) else 0.1, RIGHT) for index in CACHE}
    wrong = {**RIGHT, "object": False}
    verdicts = {
        "cache": {**noise, 1: Verdict(0.6, RIGHT), 2: Verdict(0.5, wrong), 4: Verdict(0.6, RIGHT)},
        "no_cache": noise,
        "fewer_steps": {1: Verdict(0.3, wrong)},
    }
    from_noise = {index: replace(kept, source="noise", start_step=0, steps_run=50) for index, kept in CACHE.items()}
    figures = figures_of(traced(), {"cache": CACHE, "no_cache": from_noise, "fewer_steps": {}}, verdicts)
    assert figures["hits"] == 3
    assert figures["exact_repeats"] == 1
    assert figures["hit_rate"] == pytest.approx(0.75)
    assert figures["k_histogram"] == {"0": 1, "10": 1, "25": 2}
    hits = figures["hits_against_noise"]
    assert hits["clip_ratio"] == pytest.approx(1.7 / 1.8)
    assert hits["accuracy"]["object"] == pytest.approx(2 / 3)
    assert hits["accuracy"]["all"] == pytest.approx(2 / 3)
    assert hits["accuracy_from_noise"]["all"] == 1
    assert figures["fewer_steps_against_noise"]["pictures"] == 1
    assert figures["fewer_steps_against_noise"]["clip_ratio"] == pytest.approx(0.5)
    assert figures["cache_on_the_same_prompts"]["clip_ratio"] == pytest.approx(1.0)
    assert figures["by_k"]["25"]["pictures"] == 2
    seconds = {"cache": 7.0, "no_cache": 10.0, "fewer_steps": 7.0}
    figures |= {"seconds": seconds, "wall_time_saved": 0.3, "cpu_time_saved": 0.25, "fewer_steps": 35}
    look = {"pictures": 3, "saturation": 0.9, "contrast": 0.8, "edges": 0.7, "less_contrast": 2 / 3}
    text = report(figures | {"look_against_noise": look})
    assert "saturation 0.900, contrast 0.800, edges 0.700; 66.7% have less contrast" in text
    assert "have less contrast" not in report(figures | {"look_against_noise": {"pictures": 0}})
    assert "1 exact repeats, 3 hits (75.0% of the rest)" in text
    assert "no cache, 35 steps" in text
    assert plots(figures, tmp_path).stat().st_size > 1000


def test_accuracy_counts_only_what_was_judged() -> None:
    assert accuracy([Verdict(0.5)]) == {}
    assert accuracy([Verdict(0.5), Verdict(0.5, RIGHT), Verdict(0.5, {**RIGHT, "light": False})])["light"] == 0.5


def test_overhead_is_what_is_not_computing_and_its_parts_add_up() -> None:
    timings = {
        "embed_s": 0.004, "predict_s": 0.001, "plan_s": 0.001, "accept_s": 0.001, "queue_s": 0.0015, "fetch_s": 0.0001,
        "encode_s": 0.002, "denoise_s": 0.103, "decode_s": 0.005, "store_s": 0.001, "total_s": 0.12,
    }  # fmt: skip
    one = sample(True, 0.125, timings, embedding_s=0.003, forwards_s=0.1)
    assert one.overhead_s == pytest.approx(0.125 - 0.003 - 0.1 - 0.002 - 0.005)
    assert sum(one.parts.values()) == pytest.approx(one.overhead_s)
    assert set(one.parts) == {name for name, _ in PARTS}
    assert one.parts["embed_s"] == pytest.approx(0.001)
    assert one.parts["queue_s"] == pytest.approx(0.0005)  # the rest is in accept_s
    assert one.parts["between"] == pytest.approx(0.003)
    found = summary([one, one])
    assert found["requests"] == 2
    assert found["p50_ms"] == pytest.approx(one.overhead_s * 1000)
    assert summary([]) == {"requests": 0}
