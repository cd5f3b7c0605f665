"""Seconds and memory of clips by length and batch, from noise on the CPU.

    python -m bench.clips_cost --threads 2
    python -m bench.clips_cost --tiny                   (few frames and steps: does the command work?)

Each length and batch runs in a process of its own, so that its peak of resident memory is its own. Seconds count from
the prompts to the pixels of the last clip of the batch, without PNG and without loading. A first step warms up. T of
`auto` is the least T of the card's `auto_steps`, or --auto where the card has none.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table

PROMPT = "a red fox runs to the left in a snowy field"
MIB = 2**20


def measured(model: str, frames: int, batch: int, steps: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """Return one row per T: seconds of the batch and per clip, and the process's memory. Runs in its own process."""
    quiet()
    import torch

    from services.gpu_worker.families import load_family
    from shared.models import find_card

    torch.set_num_threads(threads)
    family = load_family(find_card(model), device="cpu")
    loaded = _peak()
    _generate(family, frames, batch, 1)
    rows = []
    for of in steps:
        seconds, decode_s = _generate(family, frames, batch, of)
        rows.append(
            {
                "frames": frames,
                "batch": batch,
                "steps": of,
                "seconds": seconds,
                "seconds_per_clip": seconds / batch,
                "step_s_per_clip": (seconds - decode_s) / batch / of,
                "decode_s_per_clip": decode_s / batch,
                "peak_mib": _peak() / MIB,
                "more_than_loaded_mib": (_peak() - loaded) / MIB,
            }
        )
    return rows


def _peak() -> int:
    """Return the process's largest resident memory so far in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _generate(family: Any, frames: int, batch: int, steps: int) -> tuple[float, float]:
    """Return the seconds until all clips of one batch have pixels, and the seconds of their decoding."""
    from services.gpu_worker.engine.engine import Engine
    from services.gpu_worker.engine.events import Finished, Left
    from services.gpu_worker.engine.rows import Task

    card, decode_s = family.card, 0.0
    engine = Engine({card.name: family}, max_rows=batch * frames)
    begun = time.perf_counter()
    for number in range(batch):
        task = Task(str(number), card.name, PROMPT, card.default_size, steps, card.default_guidance, number, frames)
        engine.submit(task)
    while not engine.idle:
        for event in engine.step():
            match event:
                case Finished(decode_s=own):
                    decode_s += own
                case Left(error=error):
                    raise error
    return time.perf_counter() - begun, decode_s


def report(rows: Sequence[dict[str, Any]]) -> str:
    heads = ["frames", "clips in the batch", "T", "s per clip", "ms per clip and step", "decoding, s", "peak MiB",
             "… more than loaded"]  # fmt: skip
    return table(
        heads,
        [
            [
                row["frames"], row["batch"], row["steps"], row["seconds_per_clip"], 1000 * row["step_s_per_clip"],
                row["decode_s_per_clip"], round(row["peak_mib"]), round(row["more_than_loaded_mib"]),
            ]
            for row in rows
        ],
    )  # fmt: skip


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:motion", help="bundled:NAME, or a folder")
    parser.add_argument("--frames", type=int, nargs="+", default=(16, 32, 64), help="lengths of the clips")
    parser.add_argument("--batch", type=int, nargs="+", default=(1, 2, 4), help="clips that share each step")
    parser.add_argument("--steps", type=int, default=50, help="T")
    parser.add_argument("--auto", type=int, default=10, help="T of `auto` for a card without `auto_steps`")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--tiny", action="store_true", help="default length, one clip, T = 2 and 1")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    from shared.models import find_card

    asked = parsed(given)
    on, card = machine(), find_card(asked.model)
    auto = min(card.auto_steps or (asked.auto,))
    steps = [2, 1] if asked.tiny else [asked.steps, auto]
    lengths = [card.frames.default] if asked.tiny else [n for n in asked.frames if card.frames.allows(n)]
    rows: list[dict[str, Any]] = []
    for frames, batch in product(lengths, [1] if asked.tiny else asked.batch):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            rows += alone.submit(measured, asked.model, frames, batch, steps, asked.threads).result()
        print(report(rows[-len(steps) :]), flush=True)
    print(f"\n{report(rows)}\n\n{on}")
    about = settings_of(asked) | {"size": str(card.default_size), "weights_hash": card.weights_hash, "auto": auto}
    record("clips_cost", {"rows": rows}, about | {"guidance": card.default_guidance}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
