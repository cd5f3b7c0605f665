"""The report of bench.clip_processes: each system's rates, and seconds by K where they were measured."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from bench.clip_processes import WAYS, report, settings_for
from shared.runtime.settings import Settings


def system(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": title, "counted": 40, "per_minute": 12.5, "by_source": {"noise": 30, "stitched": 10},
        "steps_saved": 0.125, "cores": {"gpu_worker-1": 0.9, "segmenter-1": 0.21}, "segment_s": 0.75,
        "waiting_for_masks": 3, **more,
    }  # fmt: skip


def test_the_report_has_a_row_for_each_system_and_start() -> None:
    start = {"count": 7, "p50_s": 3.5, "steps": 25.0, "fetch_ms": 4.0, "plan_ms": 21.0}
    found = {way.name: system(way.title) for way in WAYS}
    found["pairs"] |= {"alone": {"noise": start | {"p50_s": 6.25}, "25": start}}
    text = report(found)
    lines = text.splitlines()
    assert all(sum(way.title in line for line in lines) == 1 for way in WAYS)
    assert "30 noise, 10 stitched" in text
    assert next(line for line in lines if "K = 25" in line).split("|")[2:4] == [" 7 ", " 3.5 "]
    assert next(line for line in lines if line.startswith("| noise")).split("|")[3] == " 6.25 "


def test_only_the_system_with_pairs_takes_the_bound_of_the_command_line() -> None:
    given = Namespace(video="clips", users=2, segmenter="mine", bound="flexcache")
    found = {way.name: Settings(**settings_for(way, given)) for way in WAYS}
    assert {name: (one.reuse_bound, one.decouple, one.segmenter) for name, one in found.items()} == {
        "whole": ("nirvana", "off", ""),
        "beside": ("nirvana", "video", "mine"),
        "pairs": ("flexcache", "video", "mine"),
    }
