"""Attacks of one user on another through the shared cache: how often they succeed, across each border of the cache.

    python -m bench.probing                                       (10,000 guesses an attack; 100 minutes on two cores)
    python -m bench.probing --attacks timing
    python -m bench.probing --count 100 --shared-count 100        # does the command work?
    python -m bench.probing --set public_crowd=3 --cases "public entries, another tenant" --suffix _crowd_3
    python -m bench.probing --drawn-thresholds 1.4 --cases "public entries, another tenant" --suffix _drawn_1.4
    python -m bench.probing --near-duplicates 10 --attacks "prompt stealing" --suffix _near_10

bench/probing/attacks.py describes the attacks. Each runs across private entries and across tenants, where its rate must
be at most 2 points above chance, and where entries are shared, where it must succeed: else it proves nothing. The
server, with a no-op model, runs in a process of its own. The attacker fits its guesses to attempts whose answer it
knows. Intervals are Wilson's of 95 %. Each attack has a file of results.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.probing.arena import CALLERS, CASES, SETTINGS, Arena, Case, arena
from bench.probing.attacks import ATTACKS
from bench.probing.drawn_thresholds import program_of
from bench.probing.guessing import MARGIN
from bench.serving.processes import issue_key, one_process, scratch
from services.cli.embedded import found_running
from shared.client.credentials import channel
from shared.runtime.loop import run
from shared.runtime.progress import Remaining
from shared.service.door import EVERY_S

Done = Callable[[str, dict[str, Any]], None]
"""Takes the name of an attack, and its figures by case."""


async def measure(address: str, internal: str, keys: dict[str, str], asked: argparse.Namespace, done: Done) -> None:
    """Make the attacks one after the other, and call `done` after each."""
    async with channel(internal) as inside, arena(address, keys, inside) as place:
        for name in asked.attacks:
            done(
                name, {case.name: await _tried(place, name, case, asked) for case in CASES if case.name in asked.cases}
            )


async def _tried(place: Arena, name: str, case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    begun, count = time.monotonic(), asked.shared_count if case.shared else asked.count
    attempts = Remaining(f"{name}, {case.name}, % of the attempts", 100)
    watched = replace(
        place, near_duplicates=asked.near_duplicates, progress=lambda share: attempts.reached(100 * share)
    )
    rate = await ATTACKS[name](watched, case, count, random.Random(f"{asked.seed}/{name}/{case.name}"))
    figures = rate.as_figures() | {"seconds": round(time.monotonic() - begun, 1)}
    print(f"{name}, {case.name}: {shown(figures)}", flush=True)
    await place.purge()
    return {**figures, "met": met(case, figures)}


def met(case: Case, figures: dict[str, float]) -> bool | None:
    """Return whether a rate is at most chance and a margin, where scopes promise that; None where they do not."""
    return None if case.shared else figures["rate"] <= figures["chance"] + MARGIN


def shown(figures: dict[str, float]) -> str:
    said = f"{share(figures['rate'])} ({share(figures['low'])} to {share(figures['high'])})"
    return f"{said} of {figures['guesses']}, chance {share(figures['chance'])}, {figures['seconds']:.0f} s"


def main(given: Sequence[str] | None = None) -> None:
    parser, cases = command_line(__doc__), [case.name for case in CASES]
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--count", type=int, default=10_000, help="guesses of an attack across a border")
    parser.add_argument("--shared-count", type=int, default=2_000, help="guesses where entries are shared")
    parser.add_argument("--step-ms", type=float, default=1.0, help="milliseconds per step of the waiting denoiser")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="further settings of the server")
    parser.add_argument(
        "--drawn-thresholds",
        type=float,
        default=0.0,
        help="bench/probing/drawn_thresholds.py, up to this number; 0: off",
    )
    parser.add_argument(
        "--near-duplicates",
        type=int,
        default=0,
        help="probes about one prompt that a limit leaves to prompt stealing; 0: no limit",
    )
    parser.add_argument("--suffix", default="", help="end of the names of the results")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(given)
    quiet()
    on = machine()
    program, defence = program_of(asked.drawn_thresholds)
    settings = {**SETTINGS, **defence, "large": f"noop:?step_ms={asked.step_ms:g}"}
    settings |= dict(one.split("=", 1) for one in asked.set)

    def done(name: str, found: dict[str, Any]) -> None:
        print(table(("case", name), [(case, shown(one)) for case, one in found.items()]))
        loaded = {**on, "load_1min_after": round(os.getloadavg()[0], 2)}
        given = {**settings_of(asked), **settings}
        record(f"probing_{name.replace(' ', '_')}{asked.suffix}", found, given, on=loaded, folder=asked.out)

    with scratch() as folder, one_process(settings, folder, program) as server:
        keys = {name: issue_key(folder, name, tenant, roles) for name, (tenant, roles) in CALLERS.items()}
        time.sleep(2 * EVERY_S)  # until the server has read the keys
        facts = found_running(folder / "data")
        assert facts is not None
        run(measure(server.url, str(facts["internal"]), keys, asked, done))


if __name__ == "__main__":
    main()
