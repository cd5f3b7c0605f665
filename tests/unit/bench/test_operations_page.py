"""docs/operations.md names every metric, with its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from shared.runtime.telemetry import Metrics

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## Metrics")[1].split("Stages of")[0]


def documented() -> dict[str, set[str]]:
    rows = {}
    for line in TABLE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            for name in re.findall(r"`([a-z_]+)`", cells[0]):
                rows[name] = set(re.findall(r"`([a-z_]+)`", cells[1]))
    return rows


def test_every_metric_is_explained_with_its_labels() -> None:
    metrics = Metrics(CollectorRegistry())
    exported = {}
    for metric in vars(metrics).values():
        name = metric._name.removeprefix("afterimage_") + ("_total" if isinstance(metric, Counter) else "")
        exported[name] = set(metric._labelnames)
    assert documented() == exported
