"""Live checks: how often good and corrupted hits fail, how soon reuse stops, and how often it stops wrongly.

    python -m bench.live_checks --count 128 --work /tmp/live_checks
    python -m bench.live_checks --count 0

The engine generates the second prompt of scene pairs from noise at T = 50, and from a state of the first prompt after K
of T. Good states are those of the first prompt, where the K table in force allows K. The others are corrupted: the
state of another pair, zeros, or the negative. `--work` keeps the measured pairs, so that a run continues.

The sequential test then runs on simulated verdicts: runs whose checks fail with the largest rate that counts as good,
and runs whose checks begin to fail with a given rate after 0, 100 and 1,000 good ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, share, table
from services.cli.profiles.pairs import ScenePair, scene_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromNoise, FromState, Latent, Pixels, Start, Task
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state
from services.retriever.selection import allowed_step
from shared.domain.types import vector_from
from shared.models.card_lookup import find_card
from shared.models.live_checks import ERROR, HEALTHY, LIMITS, RATES, Evidence, failures
from shared.models.quality import Measures, look
from shared.models.tables_in_force import shipped_table
from shared.runtime.progress import Remaining

REFERENCE = 50
"""T of the references, the default of the model."""
TOGETHER = 16
"""Pairs that are generated together; a corrupted pair takes the state of its neighbour."""
GOOD = "own"
KINDS = (GOOD, "another", "zeros", "negative")
FLOOR = 0.3
"""Similarity up to which serving reuses nothing (setting similarity_floor)."""
STARTS = (0, 100, 1000)
"""Good checks before the first corrupted one."""
SOON = 200


def corrupted(kind: str, own: Latent, another: Latent) -> Latent:
    """Return the state that a corrupted store would return instead of `own`."""
    match kind:
        case "another":
            return another
        case "zeros":
            return np.zeros_like(own)
        case "negative":
            return -own
        case _:
            return own


class Generator:
    """Images and states of scene pairs."""

    def __init__(self, family: Family, encoder: Encoder, steps: int, ks: Sequence[int]) -> None:
        self._family, self._encoder, self._steps, self._ks = family, encoder, steps, ks

    def rows(self, pairs: Sequence[ScenePair]) -> Iterator[dict[str, Any]]:
        """Yield each pair's measures from noise, and by kind of state and K."""
        _, states = self._run([self._task(pair, "before", self._steps, self._ks) for pair in pairs])
        pixels, _ = self._run([self._task(pair, "noise", REFERENCE) for pair in pairs])
        tasks = []
        for pair, other in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
            for k in self._ks:
                own, another = (states[f"{one.number}/before", k] for one in (pair, other))
                for kind in KINDS:
                    start = FromState(corrupted(kind, own, another), k)
                    tasks.append(self._task(pair, f"{kind} {k}", self._steps, start=start))
        pixels |= self._run(tasks)[0]
        for pair in pairs:
            before, after = self._encoder.texts([pair.before_text, pair.after_text])
            prompt = vector_from(after.vector)
            names = ["noise", *(f"{kind} {k}" for k in self._ks for kind in KINDS)]
            images = [pixels[f"{pair.number}/{name}"] for name in names]
            vectors = self._encoder.images([encode_png(image) for image in images])
            scores = [max(float(vector_from(one.vector) @ prompt), 0.0) for one in vectors]
            measured = {
                name: _measured(*one) for name, one in zip(names, zip(scores, images, strict=True), strict=True)
            }
            similarity = float(vector_from(before.vector) @ prompt)
            yield {"pair": pair.number, "kind": pair.kind, "similarity": similarity, "measures": measured}

    def _task(self, pair: ScenePair, name: str, steps: int, ks: Sequence[int] = (), start: Start | None = None) -> Task:
        card, before = self._family.card, name == "before"
        return Task(
            f"{pair.number}/{name}", card.name, pair.before_text if before else pair.after_text, card.default_size,
            steps, card.default_guidance, seed=pair.before_seed if before else pair.after_seed,
            start=start or FromNoise(), capture_steps=tuple(ks),
        )  # fmt: skip

    def _run(self, tasks: Sequence[Task]) -> tuple[dict[str, Pixels], dict[tuple[str, int], Latent]]:
        engine = Engine({self._family.card.name: self._family}, max_rows=TOGETHER, tell_every_s=0.0)
        pixels, states = {}, {}
        for task in tasks:
            engine.submit(task)
        while not engine.idle:
            for event in engine.step():
                match event:
                    case Finished(id=name):
                        pixels[name] = event.pixels
                    case LatentCaptured(id=name, step=step, latent=latent):
                        states[name, step] = decode_state(encode_state(latent, "fp16", ()), "fp16")
                    case Left(error=error):
                        raise error
        return pixels, states


def _measured(score: float, image: Pixels) -> dict[str, float]:
    own = look(image)
    return {"score": score, "contrast": own.contrast, "saturation": own.saturation, "sharpness": own.sharpness}  # type: ignore[dict-item]


def measured_rows(work: Path, pairs: Sequence[ScenePair], steps: int, ks: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of these pairs, those of earlier runs from disk."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{steps}_{'_'.join(map(str, ks))}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    missing = iter(pairs[len(rows) :])
    if len(rows) < len(pairs):
        made = Generator(load_family(find_card("bundled:large"), device="cpu"), open_encoder("bundled:clip"), steps, ks)
        remaining = Remaining(f"pairs at T = {steps}", len(pairs) - len(rows))
        with path.open("a") as file:
            while some := list(islice(missing, TOGETHER)):
                for row in made.rows(some):
                    file.write(json.dumps(row) + "\n")
                    rows.append(row)
                    remaining.advance()
                file.flush()
    return rows[: len(pairs)]


def fail_rates(rows: Sequence[Mapping[str, Any]], steps: int, ks: Sequence[int]) -> list[dict[str, Any]]:
    """Return the share of failed checks by K and kind of state; `good` are the pairs whose K the K table allows."""
    k_table = shipped_table(find_card("bundled:large"), 0.95)
    assert k_table is not None
    found = []
    for k in ks:
        good = [row for row in rows if allowed_step(k_table, row["similarity"], steps, floor=FLOOR) >= k]
        for kind, those in [("good", good), *((kind, rows) for kind in KINDS)]:
            name = f"{GOOD if kind == 'good' else kind} {k}"
            failed = [failures(*(Measures(**row["measures"][one]) for one in (name, "noise"))) for row in those]
            by_measure = {one: sum(one in some for some in failed) for one in LIMITS}
            found.append({"steps": steps, "k": k, "states": kind, "checks": len(those), **by_measure})
            found[-1]["fails"] = sum(bool(some) for some in failed)
    return found


class Runs:
    """The evidence of many simulated runs at once; the formulas are those of `Evidence`."""

    def __init__(self, runs: int) -> None:
        self._parts: npt.NDArray[np.float64] = np.zeros((len(RATES), runs))
        self._checks = 0

    def after(self, failed: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Add one verdict per run, and return each run's evidence."""
        rates = np.array(RATES)[:, None]
        gains = np.where(failed, rates / HEALTHY, (1 - rates) / (1 - HEALTHY))
        joining = 1 / np.log2(self._checks + 2) - 1 / np.log2(self._checks + 3)
        self._parts = (self._parts + joining) * gains
        self._checks += 1
        left: npt.NDArray[np.float64] = self._parts.mean(axis=0) + 1 / np.log2(self._checks + 2)
        return left


def wrong_stops(runs: int, checks: int, rate: float, seed: int = 0) -> int:
    """Return the number of runs that stop although their checks fail with this rate alone."""
    rng, simulated, stopped = np.random.default_rng(seed), Runs(runs), np.zeros(runs, bool)
    for _ in range(checks):
        stopped |= simulated.after(rng.random(runs) < rate) >= 2 / ERROR
    return int(stopped.sum())


def checks_to_stop(rate: float, good: int, good_rate: float, runs: int = 2000, most: int = 2000) -> dict[str, Any]:
    """Return after how many checks runs stop that begin to fail with `rate` after `good` checks."""
    rng, simulated = np.random.default_rng(1), Runs(runs)
    for _ in range(good):
        simulated.after(rng.random(runs) < good_rate)
    taken = np.full(runs, most + 1)
    for check in range(1, most + 1):
        over = simulated.after(rng.random(runs) < rate) >= 2 / ERROR
        taken[over & (taken > most)] = check
        if (taken <= most).all():
            break
    within = float((taken <= SOON).mean())
    median, late = (quantile([float(one) for one in taken], q) for q in (0.5, 0.95))
    return {"rate": rate, "good_before": good, "median": median, "q95": late, f"within_{SOON}": within}


def agrees(checks: int = 500) -> bool:
    """Return whether the simulation computes what the served code computes."""
    rng, one, many = np.random.default_rng(2), Evidence(), Runs(1)
    for failed in rng.random(checks) < HEALTHY:
        one = one.after(bool(failed))
        if not np.isclose(many.after(np.array([failed]))[0], one.value):
            return False
    return True


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=64, help="scene pairs; 0: the simulation alone")
    parser.add_argument("--points", nargs="+", default=["5:1,2,3,4"], help="T:K,K…")
    parser.add_argument("--runs", type=int, default=100_000, help="simulated runs")
    parser.add_argument("--checks", type=int, default=2000, help="checks of a simulated run")
    parser.add_argument("--seed", type=int, default=18, help="seed of the scene pairs")
    parser.add_argument("--work", type=Path, default=Path("out/live_checks"), help="folder of the measured pairs")
    asked = parser.parse_args(given)
    quiet()
    torch.set_num_threads(1)
    on, pairs, rates = machine(), list(scene_pairs(asked.count, asked.seed)), []
    for point in asked.points if pairs else ():
        steps, _, ks = point.partition(":")
        numbers = [int(k) for k in ks.split(",")]
        rates += fail_rates(measured_rows(asked.work, pairs, int(steps), numbers), int(steps), numbers)
    heads = ["T", "K", "states", "checks", *LIMITS, "fails", "share"]
    print(table(heads, [[*row.values(), share(row["fails"] / max(row["checks"], 1), 1)] for row in rates]))
    assert agrees()
    good = [row for row in rates if row["states"] == "good"]
    good_rate = sum(row["fails"] for row in good) / max(sum(row["checks"] for row in good), 1) if good else 0.05
    wrong = {f"{rate:g}": wrong_stops(asked.runs, asked.checks, rate) for rate in (HEALTHY, HEALTHY / 2)}
    print(f"\nof {asked.runs} runs of {asked.checks} checks, this many stopped wrongly, by the share of fails: {wrong}")
    stops = [checks_to_stop(rate, before, good_rate) for rate in (0.25, 0.3, 0.4, 0.5, 0.7, 1.0) for before in STARTS]
    print(table(list(stops[0]), [list(row.values()) for row in stops]))
    settings = settings_of(asked) | {"limits": dict(LIMITS), "healthy": HEALTHY, "error": ERROR, "bets": RATES}
    figures = {"fail_rates": rates, "good_rate": good_rate, "wrong_stops": wrong, "checks_to_stop": stops}
    record("live_checks", figures, settings, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
