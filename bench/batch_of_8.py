"""Speed of eight requests in one batch against the same eight one after the other.

    python -m bench.batch_of_8 --threads 2

Both runs use the same requests and the same warm engine; only the number of rows per step differs. Both include prompt
encoding and decoding.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table

if TYPE_CHECKING:
    from services.gpu_worker.families import Family
    from shared.models import ModelCard


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="", help="bundled:NAME, a folder or a hub id; empty: bundled:large, else a "
                        "random one of its size")  # fmt: skip
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both runs; the medians are reported")
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    import torch

    from services.gpu_worker.families import load_family
    from services.gpu_worker.models.measuring import warm_up

    torch.set_num_threads(options.threads)
    on, card = machine(), _card(options.model, folder)
    family = load_family(card, device=options.device)
    warm_up(family)
    _draw(family, options.rows, options.rows, 3)  # warm up with the measured batch size
    alone, together = [], []
    for _ in range(options.rounds):
        alone.append(_draw(family, options.rows, 1, options.steps))
        together.append(_draw(family, options.rows, options.rows, options.steps))
    one_by_one, batched = quantile(alone, 0.5), quantile(together, 0.5)
    figures = {
        "seconds_one_by_one": one_by_one,
        "seconds_batched": batched,
        "ratio": one_by_one / batched,
        "all_one_by_one": alone,
        "all_batched": together,
    }
    settings = {name: value for name, value in vars(options).items() if name != "out"} | {
        "model": options.model or card.name,
        "size": str(card.default_size),
        "guidance": card.default_guidance,
    }
    rows = [
        ("one after the other", one_by_one, options.rows / one_by_one),
        ("one batch", batched, options.rows / batched),
    ]
    print(table([f"{options.rows} requests, T = {options.steps}", "seconds", "pictures/s"], rows))
    print(f"\nratio {figures['ratio']:.2f}   {on}")
    record("batch_of_8", figures, settings, on=on, folder=options.out)


def _card(model: str, folder: Path) -> ModelCard:
    from shared.models import bundled_cards, find_card
    from tests import tiny

    if model or "large" in bundled_cards():
        return find_card(model or "bundled:large")
    print("no bundled weights yet: random ones of the same size")
    return find_card(str(tiny.build(folder, channels=(48, 96, 160), clip=False) / "large"))


def _draw(family: Family, count: int, max_rows: int, steps: int) -> float:
    """Return the seconds until all `count` images are generated."""
    from services.gpu_worker.engine.engine import Engine
    from services.gpu_worker.engine.rows import Task

    card = family.card
    engine = Engine({card.name: family}, max_rows=max_rows)
    begun = time.perf_counter()
    for number in range(count):
        guidance = card.default_guidance
        engine.submit(Task(str(number), card.name, "a red fox", card.default_size, steps, guidance, seed=number))
    while not engine.idle:
        engine.step()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
