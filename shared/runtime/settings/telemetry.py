"""Telemetry: the metrics page, and the lines that a process writes to its log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.runtime.settings.section import Section, Share


class Telemetry(Section):
    """Metrics and log lines."""

    metrics_listen: str = Field(
        "127.0.0.1:9464", description="Address host:port of the Prometheus page /metrics; empty: no page."
    )
    trace_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^/?#@\s]+:\d+)?$",
        description="Collector that receives traces over OTLP/gRPC: http://host:port, or https:// for TLS. Needs "
        "afterimage[tracing]. Empty: no traces.",
    )
    trace_ratio: Share = Field(
        0.1,
        description="Share of the requests that are traced. A request whose caller traces is traced as the caller "
        "says.",
    )
    log_prompts: bool = Field(
        False,
        description="Write the prompt into the log line of a finished request, unless it is private or `cache` is off.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of the log lines that are written."
    )
