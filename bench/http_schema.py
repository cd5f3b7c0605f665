"""Calls of the HTTP API made from its own document: no answer may have a status or body that it does not name.

    python -m bench.http_schema --seconds 1200 --schemathesis PATH

schemathesis makes the calls, valid and invalid ones, and is no dependency: install it in an environment of its own. The
server runs in this process with no-op models, and counts the calls.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, record
from services.cli.embedded import all_services
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, configure_logging
from shared.service import running

GOAL = 10_000
"""Calls without a wrong answer."""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PHASES = "examples,coverage,fuzzing"
REPORT = "report.xml"


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chosen = Settings(
            data_dir=Path(folder), listen="127.0.0.1:0", http_listen="127.0.0.1:0", metrics_listen="", large="noop:",
            video="noop:?name=clips", check_share=0.0, max_pixels=2**16, max_steps=20,
        )  # fmt: skip
        async with running(all_services(), chosen) as process:
            document = f"{process.http_address}/openapi.json"
            # a run of random fields may end late, so that a slow call is no failure
            options = ["--checks", CHECKS, "--phases", PHASES, "--request-timeout", "60", "--continue-on-failure"]
            options += ["--max-examples", str(arguments.examples), "--max-time", str(arguments.seconds)]
            options += ["--workers", "2", "--report", "junit", "--report-junit-path", REPORT]
            made = await asyncio.create_subprocess_exec(
                arguments.schemathesis, "run", document, *options, "--seed", str(arguments.seed), "--no-shrink",
                cwd=folder,  # where it keeps its cache
            )  # fmt: skip
            await made.wait()
        failures, errors = _found(Path(folder) / REPORT)
    calls = {status: count for status, count in sorted(_calls().items()) if count}
    total = sum(calls.values())
    print(f"{total} calls, by status {calls}; {failures} wrong answers, {errors} errors of schemathesis")
    figures = {"calls": total, "by_status": calls, "failures": failures, "errors": errors, "goal": GOAL}
    figures["met"] = total >= GOAL and not failures and not errors
    record("http_schema", figures, {"seed": arguments.seed, "seconds": arguments.seconds}, folder=arguments.out)


def _found(report: Path) -> tuple[int, int]:
    """Return the operations with a wrong answer, and those whose calls schemathesis could not make."""
    root = ElementTree.parse(report).getroot()
    return len(root.findall(".//failure")), len(root.findall(".//error"))


def _calls() -> dict[str, int]:
    counts: dict[str, int] = {}
    for sample in (one for metric in METRICS.http_seconds.collect() for one in metric.samples):
        if sample.name.endswith("_count"):
            status = sample.labels["status"]
            counts[status] = counts.get(status, 0) + int(sample.value)
    return counts


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--schemathesis", default="schemathesis", help="the command, of any environment")
    parser.add_argument("--examples", type=int, default=2000, help="random calls per operation, at most")
    parser.add_argument("--seconds", type=int, default=1200, help="limit of the whole run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(given)
    quiet()
    configure_logging("critical")
    run(measure(arguments))


if __name__ == "__main__":
    main()
