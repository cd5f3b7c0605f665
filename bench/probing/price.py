"""What `public_crowd` costs: hits of tenants that share all images.

    python -m bench.probing.price --crowds 1 2 3 5

The users of the session trace belong to a few tenants. They send their requests as public, in the trace's order, to one
server with a no-op model. Each size of the crowd begins with an empty cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.probing.arena import SETTINGS, STEPS
from bench.serving.processes import one_process, scratch
from load.sessions import SHIPPED, Prompt, read_trace
from shared.client import AsyncClient, Picture
from shared.domain.types import PlanSource
from shared.runtime.loop import run


async def served(address: str, rows: Sequence[Prompt], tenants: int) -> list[Picture]:
    """Send the requests in the trace's order, one after the other: each finds all images before it."""
    clients = [AsyncClient(address, tenant=f"tenant-{number}") for number in range(tenants)]

    async def one(row: Prompt) -> Picture:
        asked: dict[str, Any] = {"seed": row.seed, "steps": STEPS, "scope": "public", "user": str(row.user)}
        return await clients[row.user % tenants].generate(row.prompt, **asked)

    made = [await one(row) for row in rows]
    for client in clients:
        await client.close()
    return made


def figures_of(made: Sequence[Picture]) -> dict[str, float]:
    """Return shares of the images that an earlier image answered or started, and of the steps that they saved."""
    generated = [one for one in made if one.plan.source is not PlanSource.EXACT]
    hits = [one for one in generated if one.plan.source is not PlanSource.NOISE]
    others = [one for one in hits if not any(each.chosen and each.prompt for each in one.plan.candidates)]
    return {
        "requests": len(made),
        "generated": len(generated),
        "hits": len(hits) / len(generated),
        "hits_of_other_tenants": len(others) / len(generated),
        "steps_saved": 1 - sum(one.steps_run for one in generated) / (STEPS * len(generated)),
    }


def measure(crowd: int, rows: Sequence[Prompt], tenants: int) -> dict[str, float]:
    settings = {**SETTINGS, "large": "noop:", "allow_anonymous": "loopback", "public_tenants": "*"}
    with scratch() as folder, one_process({**settings, "public_crowd": crowd}, folder) as server:
        return figures_of(run(served(server.url, rows, tenants)))


def main(given: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = command_line(__doc__)
    parser.add_argument("--crowds", type=int, nargs="+", default=[1, 2, 3, 5], help="values of public_crowd")
    parser.add_argument("--tenants", type=int, default=8, help="tenants that the users belong to, evenly")
    parser.add_argument("--count", type=int, default=1200, help="requests of the trace")
    asked = parser.parse_args(given)
    quiet()
    on, rows = machine(), read_trace(SHIPPED)[: asked.count]
    found = {str(crowd): measure(crowd, rows, asked.tenants) for crowd in asked.crowds}
    shares = ("hits", "hits_of_other_tenants", "steps_saved")
    print(table(("crowd", *shares), [(crowd, *(share(of[name]) for name in shares)) for crowd, of in found.items()]))
    record("probing_price", found, {**settings_of(asked), **SETTINGS}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
