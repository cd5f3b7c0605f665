"""Training in a pipeline on two ranks of this machine, one thread each, against its prediction and its baselines.

    python -m bench.pipeline_real                # about half an hour on two quiet cores
    python -m bench.pipeline_real --tiny         # a check of the script: one round, a small batch

The jobs are the bundled `large` and a ControlNet over it, with and without a second forward pass (self-conditioning)
in every iteration. Layers and links are profiled while both ranks are busy. The systems take turns; medians count. An
iteration is forward, backward and the sum of gradients, without an optimizer.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, share, table

if TYPE_CHECKING:
    from bench.pipeline.real_systems import System
    from services.trainer.pipeline.costs.profile import Profile
    from services.trainer.pipeline.plans import Plan
    from services.trainer.pipeline.settings import PlanSettings

RANKS = 2
PIPELINES = ("filled", "unfilled", "gpipe")
SYSTEMS = (*PIPELINES, "ddp", "fsdp")
MICRO_BATCHES = (2, 4, 8)
GOAL_ERROR, GOAL_OF_FLOOR = 0.10, 0.8
TIMEOUT_S = 1800.0


def main(given: Sequence[str] | None = None) -> None:
    from bench.pipeline.real_job import JOBS

    parser = command_line(__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--batch", type=int, default=32, help="samples of an iteration, over both ranks")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved runs of each system")
    parser.add_argument("--iterations", type=int, default=2, help="iterations of a run")
    parser.add_argument("--tiny", action="store_true", help="one round of one iteration, 8 samples")
    asked = parser.parse_args(given)
    if asked.tiny:
        asked.batch, asked.rounds, asked.iterations = 8, 1, 1
    quiet()
    on, figures = machine(), {}
    for job in asked.jobs:
        for twice in (False, True):
            figures[f"{job}, {'with' if twice else 'without'} self-conditioning"] = run = both_ranks(job, twice, asked)
            print_job(f"{job}, {'with' if twice else 'without'} self-conditioning", run)
    record(
        "pipeline_real", figures, settings_of(asked) | {"ranks": RANKS, "threads_per_rank": 1}, on=on, folder=asked.out
    )


def both_ranks(job: str, twice: bool, asked: Any) -> dict[str, Any]:
    """Run one job on both ranks, and return the first one's figures."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        answers, ranks = context.SimpleQueue(), []
        for rank in range(RANKS):
            process = context.Process(
                target=_rank, args=(rank, f"{folder}/store", job, twice, asked, answers), daemon=True
            )
            process.start()
            ranks.append(process)
        for process in ranks:
            process.join(TIMEOUT_S)
        if any(process.exitcode for process in ranks) or answers.empty():
            raise SystemExit(
                f"bench.pipeline_real: a rank failed or took more than {TIMEOUT_S:g} s: nothing is recorded"
            )
        found: dict[str, Any] = answers.get()
        return found


def _rank(rank: int, store: str, job: str, twice: bool, asked: Any, answers: Any) -> None:
    """Measure one job on this rank; the first one reports."""
    quiet()
    import torch
    import torch.distributed as dist

    from bench.pipeline.real_job import batch_of, new_job
    from services.trainer.pipeline.runtime.profiling import measured_profile

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=TIMEOUT_S)
    )
    training, models = new_job(job, twice)
    sizes = sorted({size for size in (1, 2, 4, 8, 16, 32) if size <= asked.batch // 2} | {asked.batch // 2})
    batch = batch_of(0, asked.batch, twice)
    profile = measured_profile(training, batch, sizes, torch.device("cpu"), repeats=1 if asked.tiny else 3)
    del training, models
    plans, settings = planned(profile, asked.batch, twice)
    systems = {name: _system(name, job, twice, plans.get(name), profile) for name in asked.systems}
    times: dict[str, list[float]] = {name: [] for name in systems}
    idle: dict[str, list[float]] = {name: [] for name in systems}
    done = dict.fromkeys(systems, 0)
    for number in range(asked.rounds + 1):  # the first round warms up
        for name, system in systems.items():
            dist.barrier()
            begun, waited_s = time.perf_counter(), system.waited_s
            for _ in range(asked.iterations):
                now, following = (batch_of(done[name] + ahead, asked.batch, twice) for ahead in (0, 1))
                system.step(now, following)
                system.clear()
                done[name] += 1
            dist.barrier()
            if number:
                taken_s = time.perf_counter() - begun
                times[name].append(taken_s / asked.iterations)
                if waited_s is not None and system.waited_s is not None:
                    idle[name].append((system.waited_s - waited_s) / taken_s)
    shares: list[Any] = [None] * RANKS
    dist.all_gather_object(shares, idle)
    if rank == 0:
        measured_idle = {name: mean(median(one[name]) for one in shares) for name in idle if idle[name]}
        answers.put(figures_of(profile, plans, settings, times, measured_idle))
    dist.barrier()
    dist.destroy_process_group()


def planned(profile: Profile, batch: int, twice: bool) -> tuple[dict[str, Plan], PlanSettings]:
    """Return the best filled and unfilled plans with two stages, and GPipe's."""
    from services.trainer.pipeline.search import best_plan
    from services.trainer.pipeline.settings import PlanSettings

    counts = tuple(count for count in MICRO_BATCHES if batch % count == 0)
    settings = PlanSettings(
        batch=batch, devices=RANKS, self_conditioning=float(twice), stages=(RANKS,), micro_batches=counts
    )
    unfilled = settings.model_copy(update={"fill": False})
    found = {
        "filled": best_plan(profile, settings),
        "unfilled": best_plan(profile, unfilled),
        "gpipe": best_plan(profile, unfilled.model_copy(update={"micro_batches": (4,)}), "gpipe"),
    }
    return {name: plan for name, plan in found.items() if plan is not None}, settings


def _system(name: str, job: str, twice: bool, plan: Plan | None, profile: Profile) -> System:
    """Load the job anew for a system: each one keeps its own model."""
    import torch

    from bench.pipeline.real_job import new_job
    from bench.pipeline.real_systems import DataParallel, Pipelined
    from services.trainer.pipeline.runtime.executor import PipelineExecutor

    training, models = new_job(job, twice)
    if plan is None:
        return DataParallel(training, models, sharded=name == "fsdp")
    return Pipelined(PipelineExecutor(training, plan, profile, device=torch.device("cpu")))


def figures_of(
    profile: Profile,
    plans: dict[str, Plan],
    settings: PlanSettings,
    times: dict[str, list[float]],
    idle: dict[str, float],
) -> dict[str, Any]:
    """Return measured and predicted seconds, and how much of the possible gain the filling reaches."""
    from services.trainer.pipeline.baselines import ddp, fsdp
    from services.trainer.pipeline.comparison import compare
    from services.trainer.pipeline.schedule.bubbles import idle_device_s

    predicted = {name: plan.seconds for name, plan in plans.items()}
    predicted |= {"ddp": ddp(profile, settings).seconds, "fsdp": fsdp(profile, settings).seconds}
    measured = {name: median(values) for name, values in times.items()}
    one = plans["filled"].iterations[0]
    idle_s = idle_device_s(one.bubbles) / plans["filled"].group
    ideal_s = one.timeline.end_s + max(0.0, one.frozen_s - idle_s)
    found: dict[str, Any] = {
        "measured_s": measured,
        "all_s": times,
        "predicted_s": predicted,
        "error": {name: measured[name] / predicted[name] - 1 for name in measured},
        "idle_share": idle,
        "predicted_idle_share": {name: plan.bubble_share for name, plan in plans.items()},
        "perfect_filling_s": ideal_s,
        "frozen_share": profile.frozen_s(settings.batch / RANKS) / ddp(profile, settings).computed_s,
        "micro_batches": {name: plan.micro_batches for name, plan in plans.items()},
        "cuts": {name: [[one.start, one.stop] for one in plan.cut.stages[0]] for name, plan in plans.items()},
        "verdict": compare(profile, settings).verdict,
        "links": {"p2p": profile.p2p.model_dump(), "all_reduce": [one.model_dump() for one in profile.all_reduce]},
    }
    if {"filled", "unfilled"} <= measured.keys():
        possible = predicted["unfilled"] / ideal_s
        found["gain"] = measured["unfilled"] / measured["filled"]
        found["possible_gain"] = possible
        found["of_floor"] = (found["gain"] - 1) / (possible - 1) if possible > 1 else None
    return found


def print_job(name: str, found: dict[str, Any]) -> None:
    """Print one job's table."""
    print(f"\n{name}: frozen share {share(found['frozen_share'])}; goal: error within {share(GOAL_ERROR, 0)}\n")
    rows = [
        [
            system,
            found["measured_s"][system],
            found["predicted_s"][system],
            share(found["error"][system], 1),
            share(found["idle_share"].get(system), 1),
            share(found["predicted_idle_share"].get(system), 1),
        ]
        for system in found["measured_s"]
    ]
    print(table(["system", "measured, s", "predicted, s", "error", "idle", "predicted"], rows))
    if "gain" in found:
        print(
            f"\nfilling gains {found['gain']:.3f}, {found['possible_gain']:.3f} is possible; "
            f"{share(found['of_floor'], 0)} of it (goal: ≥ {share(GOAL_OF_FLOOR, 0)})"
        )
    print(found["verdict"])


if __name__ == "__main__":
    main()
