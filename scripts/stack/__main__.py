"""`python -m scripts.stack up|status|restart|down`: run all services and servers here, without Docker."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scripts.stack.servers import StackError
from scripts.stack.stack import LED, PORTS, STATE_FILE, Stack, resident_bytes, variable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
Folder = Annotated[Path, typer.Option(help="Folder of the stack's data, logs and list of processes.")]
Count = Annotated[int, typer.Option(min=1, max=64)]
HERE = Path("out/stack")


@app.command()
def up(
    folder: Folder = HERE,
    gateways: Count = 1,
    embedders: Count = 1,
    text_extractors: Count = 1,
    match_predictors: Count = 1,
    retrievers: Count = 1,
    cache_maintainers: Count = 1,
    segmenters: Count = 1,
    global_monitors: Count = 1,
    workers: Count = 2,
) -> None:
    """Start the servers, then every service in a process of its own, with the settings of AFTERIMAGE_… variables.

    A server whose URL is set (AFTERIMAGE_BUS_URL, …) is used as it is. The others are started privately for this stack.
    """
    folder = folder.absolute()
    if (folder / STATE_FILE).exists():
        if any(server.alive for server in Stack.load(folder).processes.values()):
            raise StackError(
                f"a stack already runs in {folder}; see `make stack-status`, stop it with `make stack-down`"
            )
        (folder / STATE_FILE).unlink()
    replicas = {
        "gateway": gateways,
        "embedder": embedders,
        "text_extractor": text_extractors,
        "match_predictor": match_predictors,
        "retriever": retrievers,
        "cache_maintainer": cache_maintainers,
        "segmenter": segmenters,
        "global_monitor": global_monitors,
        "gpu_worker": workers,
    }
    out, begun = Console(), time.monotonic()
    out.print(f"[dim]starting in {folder} …[/dim]", highlight=False)
    stack = Stack(folder, replicas=replicas).start(
        lambda names: out.print(f"[dim]{time.monotonic() - begun:5.1f} s  {names}[/dim]", highlight=False)
    )
    stack.save()
    for line in variables(stack):
        out.print(line, highlight=False, soft_wrap=True)
    out.print(f"gRPC: {', '.join(stack.gateways)}   logs: {folder}/services/*.log", highlight=False, soft_wrap=True)
    out.print(f"Generate: afterimage generate 'a red fox in the snow' --target {stack.gateways[0]}", highlight=False)
    out.print("See:  make stack-status      Stop: make stack-down", highlight=False)


def variables(stack: Stack) -> list[str]:
    """Return variables for the commands: server URLs, and addresses of the services called besides the gateway."""
    names = [variable(setting) for setting in (*(port.setting for port in PORTS), *(f"{name}_address" for name in LED))]
    return [f"{name}={stack.environment[name]}" for name in names]


@app.command()
def status(folder: Folder = HERE) -> None:
    """Show each process with state, address and memory; exit with 1 when one does not run or serve."""
    table, well = Table("process", "state", "pid", "address", "memory"), True
    for name, server in Stack.load(folder.absolute()).processes.items():
        state = "dead" if not server.alive else "runs"
        if state == "runs" and "-" in name:
            state = "serving" if server.ready() else "not serving"
        well = well and state in ("runs", "serving")
        memory = f"{resident_bytes(server.pid) / 2**20:.0f} MB" if server.alive else ""
        table.add_row(name, state, str(server.pid), server.url.rpartition("@")[2], memory)
    Console().print(table)
    raise typer.Exit(0 if well else 1)


@app.command()
def restart(service: str, folder: Folder = HERE) -> None:
    """Restart one service (`gateway`: its replicas one after the other) or one replica (`gpu_worker-2`).

    Each replica drains, then starts at the same address with the settings of `up` and the current code.
    """
    stack, out = Stack.load(folder.absolute()), Console()
    replicas = [name for name in stack.names() if "-" in name]
    wanted = [name for name in replicas if service in (name, name.rpartition("-")[0])]
    if not wanted:
        raise StackError(f"no service {service!r} in this stack; name one of {', '.join(replicas)}, or a service")
    for name in wanted:
        begun = time.monotonic()
        stack.restart(name)
        stack.save()
        out.print(f"{name} restarted in {time.monotonic() - begun:.1f} s", highlight=False)


@app.command()
def down(folder: Folder = HERE) -> None:
    """Drain the services and stop all processes that `up` started; the data stays for the next `up`."""
    stack = Stack.load(folder.absolute())
    begun = time.monotonic()
    stack.stop()
    Console().print(f"{len(stack.processes)} processes stopped in {time.monotonic() - begun:.1f} s", highlight=False)


def main() -> None:
    try:
        app()
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(os.EX_UNAVAILABLE) from None


if __name__ == "__main__":
    main()
