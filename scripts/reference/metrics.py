"""The page of metrics: every metric of `shared.runtime.telemetry` with its help string."""

from __future__ import annotations

from scripts.reference.markdown import code, prose, table
from shared.runtime.telemetry import METRICS

INTRO = """\
# Metrics

`/metrics` on [`AFTERIMAGE_METRICS_LISTEN`](settings.md#telemetry) serves Prometheus text. Counters end in `_total`.
A histogram has the series `_bucket`, `_sum` and `_count`. Labels are bounded: no prompt, user or job id is a label.

The texts are the metrics' own help strings. [Diagnose](../how-to/diagnose.md) says which metrics to look at.

"""


def page() -> str:
    """Return the page as Markdown."""
    rows = []
    for metric in vars(METRICS).values():
        (described,) = metric.describe()
        name = described.name + ("_total" if described.type == "counter" else "")
        labels = ", ".join(code(label) for label in metric._labelnames)
        rows.append((code(name), described.type, labels, prose(described.documentation)))
    return INTRO + table(("metric", "type", "labels", "meaning"), rows)
