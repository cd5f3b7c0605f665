"""Price of defences of public entries, in hits of tenants that share all images.

    python -m bench.probing.price --crowds 1 2 3 5 --drawn-thresholds 1 1.4 --limits 3 10

The users of the session trace belong to a few tenants. They send their requests as public, in the trace's order, to one
server with a no-op model. Each defence begins with an empty cache. A limit refuses a request that is a near-duplicate
of as many others of its user within an hour; what it would refuse is counted in the first run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.probing.arena import SETTINGS, STEPS
from bench.probing.drawn_thresholds import program_of
from bench.serving.processes import one_process, scratch
from load.edit_structure import relation
from load.sessions import SHIPPED, Prompt, read_trace
from shared.client import AsyncClient, Picture
from shared.domain.types import PlanSource
from shared.runtime.loop import run

HOUR_S = 3600.0


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


def refused(rows: Sequence[Prompt], limit: int) -> list[bool]:
    """Return which requests are near-duplicates of `limit` others that their user sent in the hour before."""
    return [
        sum(
            one.user == row.user
            and row.arrival_s - one.arrival_s < HOUR_S
            and relation(one.prompt, row.prompt) != "other"
            for one in rows[:place]
        )
        >= limit
        for place, row in enumerate(rows)
    ]


def limited(rows: Sequence[Prompt], made: Sequence[Picture], limit: int) -> dict[str, float]:
    """Return the shares of requests, and of the hits of `figures_of`, that a limit refuses."""
    hits = [one.plan.source not in (PlanSource.NOISE, PlanSource.EXACT) for one in made]
    over = refused(rows, limit)
    return {
        "refused": sum(over) / len(over),
        "hits_refused": sum(hit and gone for hit, gone in zip(hits, over, strict=True)) / max(sum(hits), 1),
    }


def measure(rows: Sequence[Prompt], tenants: int, crowd: int = 1, drawn: float = 0.0) -> list[Picture]:
    program, defence = program_of(drawn)
    settings = {**SETTINGS, "large": "noop:", "allow_anonymous": "loopback", "public_tenants": "*"}
    with scratch() as folder, one_process({**settings, "public_crowd": crowd, **defence}, folder, program) as server:
        return run(served(server.url, rows, tenants))


def main(given: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = command_line(__doc__)
    parser.add_argument("--crowds", type=int, nargs="+", default=[2, 3, 5], help="values of public_crowd")
    parser.add_argument("--drawn-thresholds", type=float, nargs="+", default=[1.0, 1.4], help="largest thresholds")
    parser.add_argument(
        "--limits", type=int, nargs="+", default=[3, 10, 30], help="near-duplicates of a user in an hour"
    )
    parser.add_argument("--tenants", type=int, default=8, help="tenants that the users belong to, evenly")
    parser.add_argument("--count", type=int, default=1200, help="requests of the trace")
    asked = parser.parse_args(given)
    quiet()
    on, rows = machine(), read_trace(SHIPPED)[: asked.count]
    plain = measure(rows, asked.tenants)
    found = {"none": figures_of(plain)}
    found |= {f"crowd {one}": figures_of(measure(rows, asked.tenants, crowd=one)) for one in asked.crowds}
    found |= {
        f"thresholds up to {one:g}": figures_of(measure(rows, asked.tenants, drawn=one))
        for one in asked.drawn_thresholds
    }
    shares = ("hits", "hits_of_other_tenants", "steps_saved")
    print(table(("defence", *shares), [(name, *(share(of[one]) for one in shares)) for name, of in found.items()]))
    limits = {f"limit {one}": limited(rows, plain, one) for one in asked.limits}
    print(
        table(("defence", "refused", "hits refused"), [(name, *map(share, of.values())) for name, of in limits.items()])
    )
    record("probing_price", found | limits, {**settings_of(asked), **SETTINGS}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
