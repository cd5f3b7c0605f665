"""Jobs through a cluster whose services and servers are killed under load: nothing is lost, nothing drawn twice.

A short form by default; FAULTS=full for the whole (1,000 jobs; FAULTS_JOBS=n: fewer of them), FAULTS_SEED=n for the
same chances again. FAULTS_VIDEO=n runs the full form with n clips and half as many images (FAULTS_JOBS=n: as many).
Beside these: FAULTS_KILLS=3 kills services three times as often, FAULTS_SLOW=3 slows each worker to a third,
FAULTS_CLOCKS=600 sets half of the services' clocks 600 s ahead and the others 600 s behind.
FAULTS_ORDER=urgent orders lanes by urgency, arrival does not; without it the seed chooses.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.measuring.recording import machine, quantile, record
from scripts.stack.stack import variable
from shared.domain.types import Job, JobState, Modality, PlanSource
from tests.contracts.servers import folder
from tests.faults.cluster import SHORT, STEPS, FaultStack, asked, build_models, whole
from tests.faults.conftest import Say
from tests.faults.inspection import inspect, outside, rest, unfindable, unmasked_reasons
from tests.faults.killing import Killer
from tests.faults.load import Load
from tests.faults.servers import all_servers
from tests.faults.verdict import judge
from tests.forking import ForkedStack

CLIPS = int(os.environ.get("FAULTS_VIDEO") or 0)
WHOLE = CLIPS > 0 or os.environ.get("FAULTS") == "full"
FOUND_AGAIN_S = 90.0
"""How long a cache maintainer may take to notice what a killed index forgot: three of its rounds (blob_grace_s / 2)."""
KILLS, SLOW = (float(os.environ.get(name) or 1) for name in ("FAULTS_KILLS", "FAULTS_SLOW"))
IMAGES = int(os.environ.get("FAULTS_JOBS") or (CLIPS // 2 if CLIPS else 1000))
FORM = whole(IMAGES + CLIPS, CLIPS, KILLS, SLOW) if WHOLE else SHORT
MODELS = {"large", "encoder", "video", "segmenter"}
OTHERS = {"kills": KILLS, "slow": SLOW}
SEED = int(os.environ.get("FAULTS_SEED") or random.randrange(10**6))
ORDER = os.environ.get("FAULTS_ORDER") or ("arrival", "urgent")[SEED % 2]
CLOCKS_S = float(os.environ.get("FAULTS_CLOCKS") or 0)
FORM = replace(FORM, lane_order=ORDER, clocks_s=CLOCKS_S if WHOLE else 0.0)


class ShortStack(ForkedStack, FaultStack):
    """Starts sooner; the whole form starts each service as its users do."""


async def test_services_and_servers_are_killed_under_load(tmp_path_factory: pytest.TempPathFactory, say: Say) -> None:
    all_servers()
    seed, jobs = SEED, f"{FORM.jobs} jobs ({FORM.clips} clips)"
    say(f"seed {seed}: {jobs}, T = {STEPS}, {FORM.clients} clients, order by {ORDER}, {dict(FORM.replicas)}")
    models = build_models(tmp_path_factory.mktemp("models"), FORM)
    paths = {path.name: str(path) for path in models.iterdir()}
    on, stack = machine(), (FaultStack if WHOLE else ShortStack)(folder() / "faults", models, FORM)
    await asyncio.to_thread(stack.start)
    try:
        load, killer, took_s = await _broken(stack, seed)
        async with outside(stack) as backends:
            settled_s = await rest(backends, FORM.settle_s)
            # a key without an answer by now is lost, whatever it would get here
            unrepeated = await load.ask_again(_some_keys(load, seed), FORM.clients, FORM.limit_s / 3)
            catalog = stack.environment[variable("catalog_url")]
            answers = load.every_answer
            left, rows = await inspect(backends, catalog, paths, answers, redrawers=FORM.redrawers)
            reasons = await unmasked_reasons(catalog)
            hidden, lost = await unfindable(backends, FOUND_AGAIN_S)
            figures: dict[str, Any] = {
                **_figures(load, killer, rows),
                "masks": {"entries": sum("masks/" in key for keys in left.named.values() for key in keys)}
                | dict(Counter(filter(None, reasons.values()))),
                "unrepeated": len(unrepeated),
                "unfindable": len(hidden),
                "unfindable_for_good": len(lost),
                "load_s": round(took_s, 1),
                "settled_s": round(settled_s, 1),
            }
    finally:
        await asyncio.to_thread(stack.stop)
    verdict = judge(left)
    figures = {"verdict": verdict.counts(), "seed": seed, **figures}
    for name, value in figures.items():
        say(f"{name.replace('_', ' ')}: {value}")
    say(str(verdict), last=True)
    if WHOLE:
        settings = FORM.settings() | {"services": stack.told | dict.fromkeys(MODELS & stack.told.keys(), "tiny")}
        record(_name(), figures, settings, on=on, command=_command(seed))
    assert verdict.clean, verdict
    assert not unrepeated, f"asked again, these did not get the same answer once more: {unrepeated}"
    assert not lost, f"entries that no search finds, and that nobody brings back: {lost}"
    assert not killer.died, f"ended by themselves: {killer.died}"
    assert figures["resumes"] >= FORM.least_resumes, "too few resumes from a step > 0 for the run to count"
    assert figures["clips"]["resumes"] >= FORM.clips // 20, "too few resumes of clips for the run to count"
    if FORM.jobs >= 1000:
        assert figures["mean_concurrency"] >= 8
        assert all(server["in_flight"] >= 8 for server in killer.servers_killed.values()), killer.servers_killed


def _name() -> str:
    others = [f"_{name}_{times:g}" for name, times in OTHERS.items() if times != 1] + ["_clocks"] * bool(CLOCKS_S)
    return "".join(["faults_video" if CLIPS else "faults", "_urgent" * (ORDER == "urgent"), *others])


def _command(seed: int) -> str:
    others = "".join(f"FAULTS_{name.upper()}={times:g} " for name, times in OTHERS.items() if times != 1)
    others += f"FAULTS_CLOCKS={CLOCKS_S:g} " * bool(CLOCKS_S)
    form = f"FAULTS_VIDEO={CLIPS}" if CLIPS else "FAULTS=full"
    return f"{form} {others}FAULTS_JOBS={IMAGES} FAULTS_SEED={seed} FAULTS_ORDER={ORDER} make faults"


async def _broken(stack: FaultStack, seed: int) -> tuple[Load, Killer, float]:
    """The load with services killed, then with servers killed, until every job is answered."""
    chance = random.Random(seed)
    load = Load(stack.gateways, asked(FORM, chance), chance)
    killer = Killer(stack, FORM, random.Random(seed + 1))
    begun = time.monotonic()
    running = asyncio.create_task(load.run(FORM.clients))
    telling = asyncio.create_task(_progress(load, killer))
    try:
        async with asyncio.timeout(FORM.limit_s):
            await _first_kill(stack, killer, running.done)
            await killer.services(lambda: running.done() or load.done >= FORM.kills_until * FORM.jobs)
            await killer.servers(load, running.done)
            await running
    except TimeoutError:
        pass
    finally:
        took_s = time.monotonic() - begun
        telling.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await killer.all_back()
    return load, killer, took_s


async def _first_kill(stack: FaultStack, killer: Killer, end: Callable[[], bool]) -> None:
    async with outside(stack) as backends:

        async def drawn() -> Sequence[Job]:
            return (await backends.catalog.jobs.list(tenant=None, state=JobState.RUNNING, limit=50))[0]

        await killer.at_work(drawn, end)


async def _progress(load: Load, killer: Killer) -> None:
    """One line that is written anew, where the output is shown."""
    begun = time.monotonic()
    sys.stderr.write("\n")
    while True:
        away = ", ".join(killer.away) or "nobody"
        sys.stderr.write(
            f"\r{time.monotonic() - begun:5.0f} s  {load.done}/{len(load.requests)} jobs  {load.in_flight} in flight  "
            f"{len(killer.killed)} kills  away: {away}\x1b[K"
        )
        sys.stderr.flush()
        await asyncio.sleep(1.0)


def _some_keys(load: Load, seed: int) -> list[str]:
    keys = sorted(key for key, answers in load.answers.items() if answers)
    return random.Random(seed + 2).sample(keys, min(FORM.asked_again, len(keys)))


def _figures(load: Load, killer: Killer, jobs: Sequence[Job]) -> dict[str, Any]:
    clips = [job for job in jobs if job.request.modality is Modality.VIDEO]
    return {
        "jobs": len(jobs),
        "clips": {
            "jobs": len(clips),
            "attempts": sum(job.attempt for job in clips),
            "resumes": sum(_resumed(job) for job in clips),
            "sources": dict(Counter(str(job.plan.source) for job in clips)),
            "most_bytes": max((job.result.picture_bytes for job in clips if job.result), default=0),
        },
        "sizes": dict(sorted(Counter(str(job.request.size) for job in jobs).items())),
        "deadlines": dict(Counter(_deadline(job) for job in jobs if job.deadline_met is not None)),
        "longest_s": {
            kind: round(max(job.updated_at - job.created_at for job in jobs if _deadline(job) == kind), 1)
            for kind in sorted({_deadline(job) for job in jobs})
        },
        "for_deadline": dict(Counter(job.plan.for_deadline for job in jobs if job.plan.for_deadline)),
        "kills": len(killer.killed),
        "killed": killer.kinds,
        "servers_killed": killer.servers_killed,
        "ended_by_themselves": killer.died,
        "redeliveries": sum(max(job.attempt - 1, 0) for job in jobs),
        "crashes_counted": sum(job.crashes for job in jobs),
        "crashes_alone_counted": sum(job.crashes_alone for job in jobs),
        "most_crashes": max((job.crashes for job in jobs), default=0),
        "condemned": [job.error for job in jobs if job.state is JobState.FAILED and job.crashes_alone],
        "clients_told_of_a_failed_job": len(load.failed),
        "failures_counted": sum(job.failures for job in jobs),
        "most_attempts": max((job.attempt for job in jobs), default=0),
        "resumes": sum(_resumed(job) for job in jobs),
        "mean_concurrency": round(load.mean_concurrency, 1),
        "sources": dict(Counter(str(job.plan.source) for job in jobs)),
        "start_steps": dict(sorted(Counter(job.plan.start_step for job in jobs).items())),
        "degraded": sum(bool(job.plan.degraded) for job in jobs),
        "clients_saw": dict(load.errors),
        "broken_off": load.broken_off,
        "waited_p50_p99_max_s": [round(quantile(load.waited_s, share), 2) for share in (0.5, 0.99, 1.0)],
    }


def _deadline(job: Job) -> str:
    return "none" if job.deadline_met is None else "met" if job.deadline_met else "missed"


def _resumed(job: Job) -> bool:
    """Whether the attempt that finished it went on from a checkpoint: it ran fewer steps than its plan has."""
    if job.result is None or job.plan.source is PlanSource.EXACT:
        return False
    return job.result.steps_run < job.request.steps - job.plan.start_step
