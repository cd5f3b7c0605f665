"""Tables of a profile's measures, and of a profile from before these measures."""

from __future__ import annotations

import json
from dataclasses import asdict

from bench.k_quality import measure
from shared.models.card_lookup import BUNDLED
from shared.models.quality import Measured, Quality


def test_a_measure_is_a_table_of_kinds_and_k() -> None:
    cell = {"quality": asdict(Quality(copying=Measured(0.021, 0.034, 20), variety=Measured(0.5, None, 2)))}
    measured = {"kinds": {"unrelated": {"5": cell, "15": {}}, "colour": {"5": {"quality": None}}}}
    head, _, line = measure(measured, "copying").splitlines()
    assert "K = 5" in head
    assert [part.strip() for part in line.strip("|").split("|")] == ["unrelated", "20", "0.02 (≤ 0.03)", "–"]
    assert "| 0.50 | – |" in measure(measured, "variety")
    assert measure(measured, "contrast") == ""


def test_a_profile_of_an_earlier_version_has_no_table() -> None:
    measured = json.loads((BUNDLED / "large" / "quality.json").read_text())
    assert measure(measured, "copying") == ""
