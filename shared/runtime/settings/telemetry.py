"""Telemetry: the metrics page, and what a process writes to its log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.runtime.settings.section import Section


class Telemetry(Section):
    """Metrics and log lines."""

    metrics_listen: str = Field("127.0.0.1:9464", description="host:port of /metrics; empty: off.")
    log_prompts: bool = Field(False, description="Whether the log line of a finished request names its prompt.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
