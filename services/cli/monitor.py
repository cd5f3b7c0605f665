"""`afterimage monitor`: show which worker runs which model and why, live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from protos import global_monitor_pb2 as pb
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from services.cli.connection import channel_to, options, service_address
from services.cli.display.words import wide
from services.cli.embedded import settings_from
from shared.client.credentials import bearer
from shared.domain.errors import UnavailableError
from shared.runtime import rpc
from shared.runtime.settings import Settings

SHOWN_CHANGES = 10


def monitor(
    target: Annotated[
        str | None, typer.Option(help="host:port of a running Afterimage, or of a global monitor.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Data directory of the Afterimage to show.")] = None,
) -> None:
    """Show the demand, the model of each worker, and the decisions of the controller (MoDM §5.3).

    Calls the same Afterimage as `generate`: the process that works in the data directory or listens on
    AFTERIMAGE_LISTEN. In a cluster, calls the global monitor that AFTERIMAGE_GLOBAL_MONITOR_ADDRESS or --target names.

    [bold]Examples[/bold]

      afterimage monitor

      afterimage monitor --target 10.0.0.7:50051 --once
    """
    console = wide() if once else Console()
    asyncio.run(_watch(target, data_dir, console, once=once))


async def _watch(target: str | None, data_dir: Path | None, console: Console, *, once: bool) -> None:
    settings = settings_from(data_dir=data_dir)
    address = await service_address("global_monitor", target, settings, data_dir)
    if not address:
        where = f"no process works in {data_dir}" if data_dir else f"nothing listens on {settings.listen}"
        start = f"`afterimage up{options(data_dir=data_dir)}`"
        raise UnavailableError(f"{where}; start it with {start}, or name a global monitor with --target")
    async with contextlib.aclosing(_answers(address, settings)) as answers:
        if once:
            if (answer := await anext(answers, None)) is None:
                raise UnavailableError(f"{address}: the monitor is shutting down; try again in a few seconds")
            console.print(shown(answer))
            return
        with Live(console=console, screen=False, auto_refresh=False) as live:
            async for answer in answers:
                live.update(shown(answer), refresh=True)


async def _answers(address: str, settings: Settings) -> AsyncGenerator[pb.AllocationResponse, None]:
    async with channel_to("global_monitor", address, settings) as to_monitor:
        try:
            allocation = GlobalMonitorServiceStub(to_monitor).Allocation
            async for answer in allocation(pb.AllocationRequest(), metadata=bearer()):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise rpc.from_rpc_error(error) from error


def shown(answer: pb.AllocationResponse) -> RenderableType:
    """Return the summary and the tables of lanes, workers and changes."""
    return Group(_summary(answer), _lanes(answer), _workers(answer), _history(answer))


def _summary(answer: pb.AllocationResponse) -> Panel:
    large = sum(one.role == "large" for one in answer.assignments)
    fell_back = "" if answer.mode == answer.set_mode else f" (set: {answer.set_mode})"
    shares = "  ".join(f"{k}: {share:.0%}" for k, share in sorted(answer.share_by_step.items())) or "–"
    lines = [
        f"mode {answer.mode}{fell_back}, every {answer.period_s:g} s" + ("" if answer.leads else ", standing by"),
        f"demand {60 * answer.requests_per_s:.1f} requests/min, hit rate {answer.hit_rate:.0%}; K of 50: {shares}",
        f"work in full generations/min: misses {60 * answer.miss_work:.2f}, hits {60 * answer.hit_work:.2f}"
        + (f", for small models alone {60 * answer.small_work:.2f}" if answer.small_work else ""),
        f"large {large} of {len(answer.assignments)}, others {answer.small_model or '–'}; wanted {answer.target:.2f}: "
        f"{answer.why}",
        f"PID output {answer.pid_output:.2f}, error {answer.pid_error:+.2f}, integral {answer.pid_integral:+.2f}",
    ]
    if answer.deadlines:
        share = answer.deadlines_met / answer.deadlines
        lines.append(f"deadlines met lately: {answer.deadlines_met} of {answer.deadlines} ({share:.0%})")
    if answer.kept:
        lines.append(f"not switched: {answer.kept}")
    return Panel("\n".join(lines), title="global monitor", title_align="left", highlight=False, expand=False)


def _lanes(answer: pb.AllocationResponse) -> Table:
    table = Table("lane", "modality", "requests/min", "work/min", "waiting", "K of 50")
    for lane in answer.lanes:
        shares = " ".join(f"{k}:{share:.0%}" for k, share in sorted(lane.share_by_step.items()))
        rates = (f"{60 * lane.requests_per_s:.1f}", f"{60 * lane.work_per_s:.2f}", f"{lane.waiting:.1f}")
        table.add_row(lane.lane, lane.modality, *rates, shares)
    return table


def _workers(answer: pb.AllocationResponse) -> Table:
    table = Table("worker", "device", "model", "rows", "generations/min", "trusted")
    for one in answer.assignments:
        model = one.model if one.running == one.model else f"{one.running} → {one.model}"
        trusted = "yes" if one.credit == 1 else f"×{one.credit:.2f}"
        rate = f"{60 * one.rate:.2f}" if one.rate else "–"
        table.add_row(one.worker, one.kind, model, f"{one.rows}/{one.max_rows}", rate, trusted)
    return table


def _history(answer: pb.AllocationResponse) -> Table:
    table = Table("at", "requests/min", "workers", "switched", "mode", "why")
    for change in list(answer.history)[-SHOWN_CHANGES:]:
        workers = ", ".join(f"{count} {model}" for model, count in sorted(change.workers_by_model.items()))
        at = datetime.fromtimestamp(change.at).strftime("%H:%M:%S")
        table.add_row(at, f"{60 * change.requests_per_s:.1f}", workers, str(change.switches), change.mode, change.why)
    return table
