"""Simulated figures of DiffusionPipe (§6) with profiles of SD 2.1, ControlNet and a cascade.

    python -m bench.pipeline_simulated

Nothing is trained: the planner of services/trainer/pipeline predicts from bench/pipeline/facts.json, which has each
number with its source. CPU seconds of planning are measured on this machine; all other figures follow from the facts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.measuring.recording import command_line, machine, quantile, record, settings_of, share, table
from bench.pipeline.paper_profiles import MODELS, cascade_profile, facts, paper_profile
from services.trainer.pipeline.baselines import ddp
from services.trainer.pipeline.comparison import GPIPE_MICRO_BATCHES, GPIPE_STAGES
from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.costs.stage_costs import Conditions
from services.trainer.pipeline.cuts.partition import partition
from services.trainer.pipeline.filling.iteration import fill
from services.trainer.pipeline.filling.one_bubble import FrozenWork
from services.trainer.pipeline.plans import Plan, filled, make_plan
from services.trainer.pipeline.schedule.bubbles import idle_device_s
from services.trainer.pipeline.search import best_plan, plans
from services.trainer.pipeline.settings import PlanSettings

STAGES, MICRO_BATCHES = (2, 3, 4), (1, 2, 3, 4, 6, 8)
BATCH, SMALL_BATCH = 192, 96
"""Batch of one pipeline in the table of bubbles; all numbers of micro-batches divide it."""
LOCAL_BATCH = 32
"""Samples of a device in the table of throughputs: 256 on 8 devices, 2,048 on 64, as in §6.1."""
DEVICES = (8, 16, 32, 64)
BATCHES = (128, 256, 384)
"""Batches of the ablation, on 8 devices."""
WAYS = ("fixed", "searched")


def floor_of(plan: Plan, settings: PlanSettings) -> float:
    """Return the bubble share that is left if all frozen work fills bubbles; frozen work that is longer leaves none.

    Frozen work counts as long as on all devices of the group. On fewer devices its local batch is larger and may take
    more time in proportion, so that a filling may leave slightly less.
    """
    one = plan.iterations[0]
    idle = idle_device_s(one.bubbles) / plan.group
    return max(0.0, idle - one.frozen_s) / max(one.timeline.end_s, one.timeline.end_s - idle + one.frozen_s)


def bubbles(profile: Profile, settings: PlanSettings, batch: int = BATCH) -> dict[str, Any]:
    """Return the bubble share before and after filling, and its floor, by S and M."""
    found: dict[str, Any] = {}
    for stages, micro_batches in itertools.product(STAGES, MICRO_BATCHES):
        one = settings.model_copy(update={"batch": batch, "devices": stages})
        plan = make_plan(profile, profile.backbones, one, stages=stages, micro_batches=micro_batches, group=stages)
        assert plan is not None
        greedy, beam = (
            filled(plan, profile, one.model_copy(update={"beam_width": width})) for width in (1, one.beam_width)
        )
        found[f"S={stages} M={micro_batches}"] = {
            "before": plan.bubble_share,
            "greedy": greedy.bubble_share,
            "beam": beam.bubble_share,
            "floor": floor_of(plan, one),
            "iteration_s": {"greedy": greedy.seconds, "beam": beam.seconds, "unfilled": plan.seconds},
        }
    return found


def ablation(profile: Profile, batches: Sequence[int] = BATCHES, ways: Sequence[str] = WAYS) -> dict[str, Any]:
    """Return samples/s on 8 devices with the whole method, without partial batches and without filling (Fig. 15).

    S = 2, M = 4 and D = 2 throughout, as one change at a time; `searched` lets each variant choose its own.
    """
    limits = {"fixed": {"stages": (2,), "micro_batches": (4,), "group_sizes": (2,)}, "searched": {}}
    variants: dict[str, dict[str, Any]] = {
        "whole": {},
        "without partial batches": {"partial_batches": False},
        "without filling": {"fill": False},
    }
    found: dict[str, Any] = {}
    for batch in batches:
        found[str(batch)] = {
            way: {
                name: batch / _best(profile, PlanSettings(batch=batch, devices=8, **change, **limits[way])).seconds
                for name, change in variants.items()
            }
            for way in ways
        }
    return found


def throughput(profile: Profile) -> dict[str, Any]:
    """Return samples/s by number of devices, at 32 samples a device."""
    found = {}
    for devices in DEVICES:
        settings = PlanSettings(batch=LOCAL_BATCH * devices, devices=devices)
        whole = _best(profile, settings)
        plain = settings.model_copy(update={"fill": False})
        gpipe = plain.model_copy(update={"stages": (GPIPE_STAGES,), "micro_batches": (GPIPE_MICRO_BATCHES,)})
        seconds = {
            "DiffusionPipe": whole.seconds,
            "SPP-like": _best(profile, plain).seconds,
            "GPipe": _best(profile, gpipe, "gpipe").seconds,
            "DDP": ddp(profile, settings, overlap=False).seconds,
            "DDP, gradients hidden": ddp(profile, settings).seconds,
        }
        found[str(devices)] = {
            "samples_per_s": {name: settings.batch / one for name, one in seconds.items()},
            "shape": [whole.stages, whole.micro_batches, whole.group],
            "bubbles": whole.bubble_share,
        }
    return found


def cascade() -> dict[str, Any]:
    """Return samples/s of two backbones: both directions, one after the other, and on half of the devices each.

    As in §6, the last two are (samples of both) / (sum of times), and the sum of samples / time (Fig. 13c, d).
    """
    profile = cascade_profile()
    found = {}
    for devices in (8, 16):
        settings = PlanSettings(batch=32 * devices, devices=devices)
        one_each = [profile.model_copy(update={"backbones": (one,)}) for one in profile.backbones]
        halves = settings.model_copy(update={"devices": devices // 2})
        found[str(devices)] = {
            "bidirectional": 2 * settings.batch / _best(profile, settings).seconds,
            "DDP, one after the other": 2 * settings.batch / sum(_ddp(one, settings) for one in one_each),
            "DDP, half of the devices each": sum(halves.batch / _ddp(one, halves) for one in one_each),
            "memory": {
                "bidirectional": max(_best(profile, settings).memory_bytes),
                "half of the devices each": max(ddp(one, halves).memory_bytes for one in one_each),
            },
        }
    return found


def planning_seconds(runs: int) -> dict[str, Any]:
    """Return median CPU seconds of partition and filling for SD 2.1 at batch 512 on 16 devices (§6.4)."""
    profile = paper_profile("sd-2.1")
    settings = PlanSettings(batch=512, devices=16)
    everything = list(plans(profile, settings))
    most = max(everything, key=lambda one: len(one.iterations[0].bubbles))
    bubbles_of_most = most.iterations[0].bubbles

    def cut_all() -> None:
        for one in everything:
            conditions = Conditions(one.batch / one.micro_batches, one.groups, settings.devices)
            partition(
                profile, profile.backbones, conditions, stages=one.stages, devices=one.group, rounds=one.micro_batches
            )

    def fill_most(width: int) -> None:
        fill(bubbles_of_most, FrozenWork(profile.frozen, most.batch, most.group), beam_width=width)

    long = _sixty_layers(profile)
    conditions = Conditions(micro_batch=8, groups=2, cluster=16, self_conditioning=0.5)

    def cut_long(equal: bool) -> float:
        def cut(stages: int) -> None:
            partition(long, long.backbones, conditions, stages=stages, devices=8, rounds=8, equal_replicas=equal)

        return max(_seconds(partial(cut, stages), runs) for stages in (2, 4, 8))

    return {
        "plans": len(everything),
        "most bubbles of a plan": len(bubbles_of_most),
        "partition, all plans": _seconds(cut_all, runs),
        "partition and simulation, all plans": _seconds(lambda: list(plans(profile, settings)), runs),
        "filling, greedy": _seconds(partial(fill_most, 1), runs),
        "filling, beam of 8": _seconds(partial(fill_most, 8), runs),
        "whole search": _seconds(lambda: best_plan(profile, settings), runs),
        "partition, 60 layers on 8 devices, equal replicas": cut_long(True),
        "partition, 60 layers on 8 devices, any replicas": cut_long(False),
    }


def _sixty_layers(profile: Profile) -> Profile:
    """Return the profile with a backbone of 60 layers: its own 29 twice, and two of them again."""
    backbone = profile.backbones[0]
    layers = (*backbone.layers, *backbone.layers, *backbone.layers[:2])
    return profile.model_copy(update={"backbones": (backbone.model_copy(update={"layers": layers}),)})


def _best(profile: Profile, settings: PlanSettings, name: str = "diffusionpipe") -> Plan:
    found = best_plan(profile, settings, name)
    assert found is not None
    return found


def _ddp(profile: Profile, settings: PlanSettings) -> float:
    return ddp(profile, settings, overlap=False).seconds


def _seconds(run: Callable[[], object], runs: int) -> float:
    taken = []
    for _ in range(runs):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return quantile(taken, 0.5)


def figures_of(runs: int, models: Sequence[str] = MODELS) -> dict[str, Any]:
    """Return all figures."""
    profiles = {model: paper_profile(model) for model in models}
    return {
        "bubbles": {model: bubbles(one, PlanSettings()) for model, one in profiles.items()},
        "bubbles, small batch": {model: bubbles(one, PlanSettings(), SMALL_BATCH) for model, one in profiles.items()},
        "bubbles with self-conditioning in half of the iterations": {
            model: filled_half(one) for model, one in profiles.items()
        },
        "ablation": {model: ablation(one) for model, one in profiles.items()},
        "throughput": {model: throughput(one) for model, one in profiles.items()},
        "cascade": cascade(),
        "planning_s": planning_seconds(runs),
        "claims": facts()["claims"],
    }


def filled_half(profile: Profile) -> dict[str, float]:
    """Return the bubbles of the best plan on 8 devices, when half of the iterations have a second forward pass."""
    best = _best(profile, PlanSettings(batch=256, devices=8, self_conditioning=0.5))
    return {"unfilled": best.bubble_share_unfilled, "filled": best.bubble_share, "iteration_s": best.seconds}


def report(figures: dict[str, Any]) -> str:
    """Return the tables."""
    parts = []
    for model, found in figures["bubbles"].items():
        rows = [
            [name, *(share(one[key], 1) for key in ("before", "greedy", "beam", "floor"))]
            for name, one in found.items()
        ]
        parts += [
            f"\nBubbles of the iteration, {model}, batch {BATCH}\n",
            table(("", "before", "greedy", "beam", "floor"), rows),
        ]
    for model, found in figures["bubbles, small batch"].items():
        avoidable = {name: one["beam"] - one["floor"] for name, one in found.items()}
        worst = max(avoidable, key=lambda name: avoidable[name])
        parts.append(f"\nBatch {SMALL_BATCH}, {model}: at most {share(avoidable[worst], 1)} above the floor ({worst})")
    for model, found in figures["ablation"].items():
        rows = [
            [f"{batch}, {way}", *(f"{one:.1f}" for one in speeds.values()), *_changes(speeds)]
            for batch, ways in found.items()
            for way, speeds in ways.items()
        ]
        names = ("batch", "whole", "no partial batches", "no filling", "no partial batches", "no filling")
        parts += [f"\nAblation on 8 devices, samples/s, {model}\n", table(names, rows)]
    for model, found in figures["throughput"].items():
        names = ("devices", *next(iter(found.values()))["samples_per_s"])
        rows = [
            [devices, *(f"{speed:.0f}" for speed in one["samples_per_s"].values())] for devices, one in found.items()
        ]
        parts += [f"\nThroughput, samples/s, {model}\n", table(names, rows)]
    rows = [
        [devices, *(f"{one[key]:.0f}" for key in one if key != "memory")] for devices, one in figures["cascade"].items()
    ]
    parts += ["\nCascade, samples/s\n", table(("devices", "bidirectional", "sequential", "halves"), rows)]
    parts += ["\nPlanning\n", table(("", "s"), [[name, one] for name, one in figures["planning_s"].items()])]
    return "\n".join(parts)


def _changes(speeds: dict[str, float]) -> list[str]:
    whole, *others = speeds.values()
    return [f"{100 * (one / whole - 1):+.1f} %" for one in others]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median seconds of planning count")
    given = parser.parse_args(argv)
    on = machine()
    figures = figures_of(given.runs)
    print(report(figures))
    record("pipeline_simulated", figures, settings_of(given), on=on, folder=given.out)


if __name__ == "__main__":
    main()
