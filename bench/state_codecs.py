"""Quality and bytes of each state codec, on a bundled model.

    python -m bench.state_codecs --pairs 100 --steps 5 --ks 1 2 3 4
    python -m bench.state_codecs --pairs 100 --steps 50 --ks 10 25 35 45 --codecs fp16 residual-4x4 residual-1bit
    python -m bench.state_codecs --bytes-only           (bytes of a state in each format; takes no time)

The second prompt of each scene pair of `afterimage profile` is generated from noise and from every K of the first
prompt's states, once per format. Pair, seed and K are the same, so only the format differs. Those states belong to
small images. Replays count (`CODEC_SHARE`) the bytes of a 512×512 image's state of pure noise, the hardest to compress.

Measures and bounds are those of `afterimage profile --codecs`, which resumes from the same records: --rows names their
file, and a killed run loses at most eight pairs. Each T has its file in bench/results, `state_codecs_t5.json` for one.
`state_codecs.json` has the integer formats as they were measured before, by CLIP score and attributes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measuring.recording import command_line, machine, record, table
from services.cli.profiles.codecs import (
    NOISE,
    CodecProfiler,
    Record,
    attributes_of,
    broken_bounds,
    mean_bytes,
    measured_codecs,
    quality_of,
)
from services.cli.profiles.judging import judge_of
from services.cli.profiles.pairs import scene_pairs
from services.embedder.encoder import Encoder, encoder_folder
from services.gpu_worker.engine.rows import first_noise
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import encode_state
from shared.models.card_lookup import find_card
from shared.runtime.progress import Remaining

CODECS = ("fp16", "int8", "fp8", "int6", "int4", "residual-2bit", "residual-1bit", "residual", "residual-4x4")
KS = (10, 25)
STEPS = 50

NOISE_SHAPE, SMALL = (4, 64, 64), (4, 16, 16)
"""Shapes of the latents of a 512×512 image, and of a 64×64 image of the bundled models."""
SEED = 2**32 - 1
"""A seed as long as those that the gateway draws."""


def bytes_of_noise(shape: tuple[int, int, int] = NOISE_SHAPE) -> dict[str, int]:
    """Return the bytes by format of a state before its first step."""
    latent = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plain = {codec: len(encode_state(latent, codec)) for codec in CODECS if not codec.startswith("residual")}
    seeded = first_noise(SEED, shape).numpy()
    return plain | {codec: len(encode_state(seeded, codec, (SEED,))) for codec in CODECS if codec not in plain}


def bytes_table(sizes: Mapping[str, int], small: Mapping[str, int]) -> str:
    both = (sizes, small)
    rows = [[codec, *(x for one in both for x in (f"{one[codec]:,}", one[codec] / one["fp16"]))] for codec in sizes]
    return table(["noise", "512×512: bytes", "of fp16's", "64×64: bytes", "of fp16's"], rows)


def figures_of(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Return one row per K and format: bytes, quality against noise and against fp16, and the bounds that it breaks."""
    for k in sorted({one["k"] for one in records} - {0}):
        for codec in (one for one in CODECS if any((r["k"], r["codec"]) == (k, one) for r in records)):
            right = attributes_of(records, k, codec, (k, "fp16"))
            yield {
                "k": k,
                "codec": codec,
                "pairs": sum((one["k"], one["codec"]) == (k, codec) for one in records),
                "bytes": mean_bytes(records, k, codec),
                "bytes_of_fp16": mean_bytes(records, k, codec) / mean_bytes(records, k, "fp16"),
                "of_fp16": asdict(quality_of(records, k, codec, (k, "fp16"))),
                "all_attributes_of_fp16": asdict(right) if right else None,
                "of_noise": asdict(quality_of(records, k, codec, (0, NOISE))),
                "broken": broken_bounds(records, k, codec),
            }


SHOWN = ("fidelity", "attributes", "contrast", "saturation", "sharpness", "copying")


def quality_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulate each format against fp16, and its broken bounds."""
    lines = []
    for row in rows:
        measured = {**row["of_fp16"], "attributes": row["all_attributes_of_fp16"]}
        values = [measured[name]["value"] if measured[name] else "–" for name in SHOWN]
        lines.append([row["k"], row["codec"], row["pairs"], row["bytes"], *values, "; ".join(row["broken"]) or "none"])
    return table(["K", "codec", "pairs", "bytes", *(f"{name} (fp16)" for name in SHOWN), "broken bounds"], lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="large", help="name of a bundled model")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, default=STEPS, help="T of all runs")
    parser.add_argument("--ks", type=int, nargs="+", default=KS)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--rows", type=Path, help="records, taken over from earlier runs")
    parser.add_argument("--bytes-only", action="store_true", help="generate nothing, write nothing")
    asked = parser.parse_args(given)
    noise = bytes_of_noise()
    print(bytes_table(noise, bytes_of_noise(SMALL)))
    if asked.bytes_only:
        return
    torch.set_num_threads(asked.threads)
    on, card = machine(), find_card(f"bundled:{asked.model}")
    path = asked.rows or Path(f"out/bench/state_codecs/{card.name}_{asked.steps}_{asked.seed}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler = CodecProfiler(
        load_family(card, device=asked.device), Encoder(encoder_folder("bundled:clip")),
        judge_of(1)[0], asked.steps, frames=card.frames.default,
    )  # fmt: skip
    pairs = list(scene_pairs(asked.pairs, asked.seed))
    wanted = [(0, NOISE), *((k, codec) for k in asked.ks for codec in asked.codecs)]
    rows = list(figures_of(measured_codecs(profiler, pairs, wanted, path, Remaining("pairs", len(pairs)).advance)))
    print(quality_table(rows))
    name = f"state_codecs_t{asked.steps}" + (f"_{card.name}" if card.name != "large" else "")
    settings = {"model": card.name, "weights_hash": card.weights_hash, "pairs": asked.pairs, "seed": asked.seed}
    settings |= {"steps": asked.steps, "device": asked.device}
    record(name, {"rows": rows, "bytes_of_noise": noise}, settings, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
