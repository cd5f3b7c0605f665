"""Quality and bytes of each state codec, on a bundled model.

    python -m bench.state_codecs --pairs 100
    python -m bench.state_codecs --pairs 100 --steps 5 --ks 1 2 3
    python -m bench.state_codecs --bytes-only           (bytes of a state in each format; takes no time)

The second prompt of each scene pair of `afterimage profile` is generated from noise and from every K of the first
prompt's states, once per format. Pair, seed and K are the same, so only the format differs. Those states belong to
small images. Replays count (`CODEC_SHARE`) the bytes of a 512×512 image's state of pure noise, the hardest to compress.
Runs of another T than 50 are recorded beside the others, as `state_codecs_t5.json`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bench.measuring.judging import Verdict, judge_pictures, look_against, open_encoder
from bench.measuring.recording import command_line, machine, record, table
from services.cli.profiles.pairs import ScenePair, scene_pairs
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromNoise, FromState, Start, Task, first_noise
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state
from services.retriever.planning import fresh_seed
from shared.domain.errors import CancelledError
from shared.models.card_lookup import find_card
from shared.models.confidence import ratio_bounds
from shared.runtime.progress import Remaining

CODECS = ("fp16", "int8", "fp8", "int6", "int4", "residual-2bit", "residual-1bit", "residual", "residual-4x4")
KS = (10, 25)
STEPS = 50
AT_ONCE = 12
"""Pairs that share batches."""

NOISE, SMALL = (4, 64, 64), (4, 16, 16)
"""Shapes of the latents of a 512×512 image, and of a 64×64 image of the bundled models."""
SEED = 2**32 - 1
"""A seed as long as those that the gateway draws."""

Pictures = dict[tuple[int, int, str], bytes]
"""PNG by (pair, K, format); K = 0 from noise."""


def draw(
    family: Family,
    pairs: Sequence[ScenePair],
    sizes: dict[tuple[int, str], list[int]],
    steps: int = STEPS,
    ks: Sequence[int] = KS,
) -> Pictures:
    """Generate every image of these pairs; add each state's bytes to `sizes` by (K, format)."""
    engine = Engine({family.card.name: family}, max_rows=8, tell_every_s=0.0)
    pictures: Pictures = {}
    by_number = {str(pair.number): pair for pair in pairs}
    for pair in pairs:
        engine.submit(_task(family, f"{pair.number}/before", pair.before_text, pair.before_seed, steps, capture=ks))
        engine.submit(_task(family, f"{pair.number}/0/noise", pair.after_text, pair.after_seed, steps))
    while not engine.idle:
        for event in engine.step():
            match event:
                case LatentCaptured(id=name, step=k, latent=latent, noises=noises):
                    pair = by_number[name.split("/")[0]]
                    for codec in CODECS:
                        data = encode_state(latent, codec, noises)
                        sizes[k, codec].append(len(data))
                        start = FromState(decode_state(data, codec), k, 0.0, fresh_seed(pair.after_seed, name))
                        number = f"{pair.number}/{k}/{codec}"
                        engine.submit(_task(family, number, pair.after_text, pair.after_seed, steps, start))
                    if k == max(ks):
                        engine.cancel(name)
                case Finished(id=name, pixels=pixels):
                    of_pair, of_k, codec = name.split("/")
                    pictures[int(of_pair), int(of_k), codec] = encode_png(pixels)
                case Left(error=error) if not isinstance(error, CancelledError):
                    raise error
    return pictures


def _task(
    family: Family,
    name: str,
    prompt: str,
    seed: int,
    steps: int,
    start: Start | None = None,
    capture: Sequence[int] = (),
) -> Task:
    card = family.card
    return Task(
        name, card.name, prompt, card.default_size, steps, card.default_guidance, seed=seed,
        start=start or FromNoise(), capture_steps=tuple(capture),
    )  # fmt: skip


def bytes_of_noise(shape: tuple[int, int, int] = NOISE) -> dict[str, int]:
    """Return the bytes by format of a state before its first step."""
    latent = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plain = {codec: len(encode_state(latent, codec)) for codec in CODECS if not codec.startswith("residual")}
    seeded = first_noise(SEED, shape).numpy()
    return plain | {codec: len(encode_state(seeded, codec, (SEED,))) for codec in CODECS if codec not in plain}


def bytes_table(sizes: Mapping[str, int], small: Mapping[str, int]) -> str:
    both = (sizes, small)
    rows = [[codec, *(x for one in both for x in (f"{one[codec]:,}", one[codec] / one["fp16"]))] for codec in sizes]
    return table(["noise", "512×512: bytes", "of fp16's", "64×64: bytes", "of fp16's"], rows)


def figures_of(
    pairs: Sequence[ScenePair],
    verdicts: dict[tuple[int, int, str], Verdict],
    sizes: dict[tuple[int, str], list[int]],
    pictures: Pictures | None = None,
) -> Iterator[dict[str, Any]]:
    """Return one row per K and format: CLIP against noise and fp16 (95 % one-sided bounds), attributes right, and the
    look against fp16."""
    numbers = [pair.number for pair in pairs]
    noise = [verdicts[number, 0, "noise"] for number in numbers]
    for k in sorted({k for k, _ in sizes}):
        plain = [verdicts[number, k, "fp16"] for number in numbers]
        for codec in CODECS:
            own = [verdicts[number, k, codec] for number in numbers]
            # a CLIP score is never below 0 (Hessel et al., CLIPScore)
            clip, clip16, clip0 = ([max(one.clip, 0.0) for one in some] for some in (own, plain, noise))
            size, size16 = fmean(sizes[k, codec]), fmean(sizes[k, "fp16"])
            yield {
                "k": k,
                "codec": codec,
                "pairs": len(numbers),
                "bytes": size,
                "bytes_of_fp16": size / size16,
                "clip_of_noise": sum(clip) / sum(clip0),
                "clip_of_fp16": sum(clip) / sum(clip16),
                "clip_of_fp16_bounds": ratio_bounds(clip, clip16) if codec != "fp16" else (1.0, 1.0),
                "right": _right(own),
                "right_from_noise": _right(noise),
                "judged_otherwise_than_fp16": _differ(own, plain),
                "look_of_fp16": _looks(numbers, pictures or {}, k, codec),
            }


def _looks(numbers: Sequence[int], pictures: Pictures, k: int, codec: str) -> dict[str, float]:
    own, plain = ({n: pictures[n, k, one] for n in numbers if (n, k, one) in pictures} for one in (codec, "fp16"))
    return look_against(numbers, own, plain)


def _right(verdicts: Sequence[Verdict]) -> float:
    """Return the share of all attributes that the images show."""
    return fmean(fmean(one.right.values()) for one in verdicts) if verdicts[0].right else float("nan")


def _differ(own: Sequence[Verdict], plain: Sequence[Verdict]) -> dict[str, int]:
    """Count the attributes that only one of the two shows."""
    both = [(one.right[name], two.right[name]) for one, two in zip(own, plain, strict=True) for name in one.right]
    return {"lost": sum(b and not a for a, b in both), "gained": sum(a and not b for a, b in both), "of": len(both)}


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="T of all runs")
    parser.add_argument("--ks", type=int, nargs="+", default=KS)
    parser.add_argument("--bytes-only", action="store_true", help="generate nothing, write nothing")
    asked = parser.parse_args(given)
    noise = bytes_of_noise()
    print(bytes_table(noise, bytes_of_noise(SMALL)))
    if asked.bytes_only:
        return
    torch.set_num_threads(asked.threads)
    on, card = machine(), find_card(asked.model)
    family = load_family(card, device="cpu")
    pairs = list(scene_pairs(asked.pairs, asked.seed))
    sizes: dict[tuple[int, str], list[int]] = defaultdict(list)
    pictures: Pictures = {}
    remaining = Remaining("pairs", len(pairs))
    for first in range(0, len(pairs), AT_ONCE):
        pictures |= draw(family, pairs[first : first + AT_ONCE], sizes, asked.steps, asked.ks)
        remaining.advance(len(pairs[first : first + AT_ONCE]))
    keys = sorted(pictures)
    places = {pair.number: pair for pair in pairs}
    found = judge_pictures(
        {place: pictures[key] for place, key in enumerate(keys)},
        [places[key[0]].after_text for key in keys],
        [places[key[0]].after for key in keys],
        open_encoder("bundled:clip"),
    )
    rows = list(figures_of(pairs, {key: found[place] for place, key in enumerate(keys)}, sizes, pictures))
    shown = ("k", "codec", "bytes", "bytes_of_fp16", "clip_of_noise", "clip_of_fp16", "right", "right_from_noise")
    edges = [row["look_of_fp16"]["edges"] for row in rows]
    lines = [[*(row[name] for name in shown), edge] for row, edge in zip(rows, edges, strict=True)]
    print(table([*shown, "edges of fp16"], lines))
    name = "state_codecs" if asked.steps == STEPS else f"state_codecs_t{asked.steps}"
    settings = {"model": card.name, "weights_hash": card.weights_hash, "pairs": asked.pairs, "seed": asked.seed}
    record(name, {"rows": rows, "bytes_of_noise": noise}, settings | {"steps": asked.steps}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
