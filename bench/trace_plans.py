"""Decisions for every request of a session trace: hits and k of MoDM, of our latents and of retrieval.

    python -m bench.trace_plans                   (about 10 minutes of one core; continues after an interruption)
    python -m bench.trace_plans --rules relation  (the default rules and bounds; the benchmarks of papers use `paper`)

The cache begins with images of the large model for the trace's first requests (uncounted), as in MoDM §6. The real
retriever then plans every request over the real cache, index and CLIP pair, with the shipped tables. MoDM's images are
really generated, by the model that the plan names in throughput mode, because later prompts are compared with them.
Our latents and retrieval search by prompts alone, so nothing is generated for them. The benchmarks in virtual time
(bench.virtual_time.two_models and others) read these decisions.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import RESULTS, command_line, machine, read_results, record, table
from bench.traced.painting import Blank, Painter, Paints
from bench.traced.systems import Served, System
from bench.traced.traced_systems import SystemRun, main_size, same_work
from load.sessions import SHIPPED_SEED, make_trace
from shared.domain.types import PlanSource
from shared.models.card_lookup import served_cards
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

MODM = System("modm", "MoDM", cached=True, changes={"small": "bundled:small"})
NIRVANA = System("nirvana", "latents (ours)", cached=True, changes={"image_tier": "off"})
RETRIEVAL = System("retrieval", "retrieval only", cached=True, changes={"image_tier": "off"}, hands_out=True)
NAME = "trace_plans"
GENERATION = 50


@dataclass(frozen=True)
class Hits:
    """One system's decisions: a row per counted request, in the trace's order."""

    served: tuple[Served, ...]

    @property
    def rate(self) -> float:
        return fmean(one.source != PlanSource.NOISE for one in self.served)

    @property
    def k_histogram(self) -> dict[int, int]:
        """Count requests by K of 50; 0 is a miss."""
        return dict(sorted(Counter(one.start_step * GENERATION // one.steps for one in self.served).items()))

    @property
    def share_skipped(self) -> float:
        """Return the mean share of a hit's steps that are skipped; 0 without hits."""
        hits = [one.start_step / one.steps for one in self.served if one.source != PlanSource.NOISE]
        return fmean(hits) if hits else 0.0


def hits_of(run: SystemRun, warm: int, count: int) -> Hits:
    answers = run.answers()
    return Hits(tuple(answers[index] for index in range(warm, warm + count)))


def load_hits(name: str, folder: Path = RESULTS) -> Hits:
    """Read the recorded decisions of `modm`, `nirvana` or `retrieval`."""
    kept = read_results(NAME, folder)["figures"]["plans"][name]
    return Hits(tuple(_unpacked(index, line) for index, line in enumerate(kept)))


def packed(served: Served) -> str:
    """Return one line of the results: source, model, start step, similarity, and the models that may run it."""
    may_run = " ".join(f"{model}@{step}" for model, step in served.may_run)
    return ",".join((served.source, served.model, str(served.start_step), f"{served.similarity:.4f}", may_run))


def _unpacked(index: int, line: str) -> Served:
    source, model, start_step, similarity, able = line.split(",")
    may_run = tuple((name, int(step)) for name, step in (one.rsplit("@", 1) for one in able.split()))
    return Served(index, source, model, int(start_step), GENERATION, float(similarity), may_run)


def figures_of(hits: Mapping[str, Hits]) -> dict[str, Any]:
    systems = {
        name: {
            "hit_rate": one.rate,
            "share_skipped": one.share_skipped,
            "k_histogram": {str(k): n for k, n in one.k_histogram.items()},
            "by_source": dict(Counter(each.source for each in one.served)),
            "by_model": dict(Counter(each.model or "nobody" for each in one.served)),
            "who_may_run": dict(Counter(" ".join(f"{m}@{k}" for m, k in each.may_run) for each in one.served)),
        }
        for name, one in hits.items()
    }
    return {"systems": systems, "plans": {name: [packed(each) for each in one.served] for name, one in hits.items()}}


def report(figures: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{one['hit_rate']:.1%}", f"{one['share_skipped']:.3f}",
         ", ".join(f"{k}: {n}" for k, n in one["k_histogram"].items())]
        for name, one in figures["systems"].items()
    ]  # fmt: skip
    return table(["system", "hits", "share of a hit's steps skipped", "K of 50: requests"], rows)


async def measure(given: argparse.Namespace) -> None:
    settings, on = Settings(log_level="error", predictor="always", device="cpu"), machine()
    if given.fresh:
        shutil.rmtree(given.work, ignore_errors=True)
    rows = main_size(make_trace(given.warm + given.count, SHIPPED_SEED))
    encoder, hits = open_encoder(settings.encoder), {}
    cards = served_cards(settings.model_copy(update=dict(MODM.changes)))
    facts = {
        "warm": given.warm, "count": given.count, "trace_seed": SHIPPED_SEED, "encoder_hash": encoder.hash,
        "weights_hashes": {name: card.weights_hash for name, card in cards.items()},
        "alpha": settings.k_table_alpha, "image_alpha": settings.image_k_table_alpha,
        "reuse_rules": given.rules,
        "pictures": "drawn, 64×64, T = 50, MoDM's in throughput mode; nothing is drawn for the other two",
    }  # fmt: skip
    same_work(given.work, facts)
    painters: dict[str, Paints] = {"nirvana": Blank(), "retrieval": Blank()}
    for system in (RETRIEVAL, NIRVANA, MODM):
        system = replace(system, changes={**system.changes, "reuse_rules": given.rules})
        run = SystemRun(given.work, system)
        left = len(rows) - len(run.answers())
        if left:
            painter = painters.get(system.name) or Painter(
                settings.model_copy(update=dict(system.changes)), given.threads
            )
            progress = Remaining(system.title, left)
            await run.draw(rows, given.warm, settings, encoder, painter, progress.advance)
        hits[system.name] = hits_of(run, given.warm, given.count)
    figures = figures_of(hits)
    print(report(figures))
    record(NAME if given.rules == "paper" else f"{NAME}_{given.rules}", figures, facts, on=on, folder=given.out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument(
        "--warm", type=int, default=200, help="first requests, generated by the large model and not counted"
    )
    parser.add_argument("--count", type=int, default=1000, help="counted requests")
    parser.add_argument("--rules", choices=("paper", "relation"), default="paper", help="setting reuse_rules")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument(
        "--work", type=Path, default=Path("out/bench/trace_plans"), help="folder of the answers and images so far"
    )
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run")
    given = parser.parse_args(arguments)
    quiet()
    asyncio.run(measure(given))


if __name__ == "__main__":
    main()
