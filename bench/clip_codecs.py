"""State codecs of clips: bytes, cosines, times and quality of `keyframes` and `residual` beside int8 and int4.

    python -m bench.clip_codecs --count 500 --long 500      (FreeNoise clips of 16 and of 64 frames)
    python -m bench.clip_codecs --count 4 --long 1 --steps 10
    python -m bench.clip_codecs --count 0 --long 0 --steps 10 --quality 192 --ks 25 --codecs noise fp16 paper here int4
    python -m bench.clip_codecs --arithmetic                 (why independent noise caps near 4 times)

The states after K = 5, 10, 15, 20 and 25 of T = 50 are FlexCache's. A T = 10 has the same noise levels after 1 to 5
steps, at a fifth of the cost. The states are kept under `out/`, and a later run captures only those of missing clips.
`--records` has one line for each measured clip, and for each pair, K and codec: a later run measures the missing ones,
also without the states. Several processes share the work with `--part` and `--records` of their own, whose files are
then put together.

Key frames are measured with several bounds: `paper` merges frames from a cosine of .99 on and stores no other frames
(§5), `paper .9` and `paper .95` are the other two of Fig. 14a, and `here` also stores frames that would miss .995.

*Quality*: the second prompt of each pair of `afterimage profile --codecs` starts at each of `--ks` from the first
prompt's state, once per codec; pair, seed and K are the same. Key frames are coded from all five states of the run.
Without `noise` among the codecs nothing is compared with clips from noise. A pair takes 10 steps for its first clip, 10
from noise, and 10 − K for each K and codec (T = 10).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measuring.clip_codec_figures import figures_of, report
from bench.measuring.clip_codec_plots import plot
from bench.measuring.clip_states import OF_50, States, read_states, states_of
from bench.measuring.recording import command_line, machine, record, settings_of
from services.cli.profiles.codecs import (
    NOISE,
    CodecProfiler,
    attributes_of,
    broken_bounds,
    mean_bytes,
    measured_codecs,
    quality_of,
    read_records,
)
from services.cli.profiles.judging import SPRITES, judge_of
from services.cli.profiles.pairs import grammar_of, scene_pairs
from services.embedder.encoder import Encoder, encoder_folder
from services.gpu_worker.engine.rows import Latent, generator_of
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import decode_run, decode_state, encode_run, encode_state
from services.gpu_worker.jobs.keyframes import Frames, Keyframes, similarities, similarity
from shared.domain.plan_rules import scale_steps
from shared.models import ModelCard, find_card
from shared.models.state_codecs import PLAIN
from shared.runtime.progress import Remaining

VARIANTS = {
    "here": Keyframes(),
    "paper": Keyframes(0.99, 0.0),
    "paper .95": Keyframes(0.95, 0.0),
    "paper .9": Keyframes(0.9, 0.0),
}
OTHERS = ("int8", "int4", "residual", "residual-2x2x2", "residual-4x4", "residual-4x2x2")
QUALITY = (NOISE, PLAIN, *VARIANTS, *OTHERS)
"""Codecs whose quality can be measured; `noise` is no codec, but the same clips from noise."""
DIGITS = 5
"""Significant digits of the numbers that are kept of a clip."""
Row = dict[str, Any]


def rows_of(latent: Latent) -> Frames:
    return np.ascontiguousarray(latent.swapaxes(0, 1)).reshape(latent.shape[1], -1)


def clip_row(states: States, seed: int, windows: tuple[int, int]) -> Row:
    """Return the figures of one clip; byte counts are those of all its states."""
    plain = sum(2 * latent.size for latent in states.values())
    frames = {k: rows_of(latent) for k, latent in states.items()}
    row: Row = {"seed": seed, "frames": len(next(iter(frames.values()))), "ks": sorted(states), "codecs": {}}
    row["differences"] = difference_similarity(frames)
    for name, codec in VARIANTS.items():
        coded, encode_s = timed(partial(encode_run, states, codec))
        latents, decode_s = timed(partial(decode_run, coded))
        parts = codec.split(frames)
        first = next(iter(parts.values()))
        stored = sum(len(part.stored) for part in parts.values()) + len(first.common)
        own = np.arange(row["frames"])
        row["codecs"][name] = {
            **costs(states, latents, plain / sum(len(data) for data, _ in coded.values()), encode_s, decode_s),
            "frame_ratio": len(states) * row["frames"] / stored,
            "base": next(iter(parts)),
            "redundant": {k: float((codec.repeats(frames[k]) != own).mean()) for k in states},
            "repeated": {k: float(similarity(frames[k][codec.repeats(frames[k])], frames[k]).mean()) for k in states},
            "extra": {k: len(part.stored) - 1 for k, part in parts.items()},
        }
    for name in OTHERS:
        blobs, encode_s = timed(partial(encode_each, states, name, seed, windows))
        latents, decode_s = timed(partial(decode_each, blobs, name))
        row["codecs"][name] = costs(states, latents, plain / sum(map(len, blobs.values())), encode_s, decode_s)
    return row


def encode_each(states: States, codec: str, seed: int, windows: tuple[int, int]) -> dict[int, bytes]:
    return {k: encode_state(latent, codec, (seed,), windows) for k, latent in states.items()}


def decode_each(blobs: Mapping[int, bytes], codec: str) -> States:
    return {k: decode_state(data, codec) for k, data in blobs.items()}


def costs(states: States, latents: States, ratio: float, encode_s: float, decode_s: float) -> Row:
    """Return ratio, mean and least cosine of a frame by K, and seconds for all states."""
    cosines = {k: similarity(rows_of(latents[k]), rows_of(states[k])) for k in states}
    return {
        "ratio": ratio,
        "cosine": {k: float(one.mean()) for k, one in cosines.items()},
        "least": float(min(one.min() for one in cosines.values())),
        "encode_s": encode_s,
        "decode_s": decode_s,
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the seconds of this thread's processor: other work on the machine does not count."""
    begun = time.thread_time()
    return work(), time.thread_time() - begun


def difference_similarity(frames: Mapping[int, Frames]) -> list[list[float]]:
    """Return the mean cosine of frames' differences to the first frame between each two steps (Fig. 6)."""
    differences = [frames[k][1:] - frames[k][0] for k in sorted(frames)]
    return [[float(similarity(one, other).mean()) for other in differences] for one in differences]


def arithmetic(frames: Sequence[int] = (8, 16, 32, 64, 128, 256), window: int = 16, steps: int = 5) -> list[Row]:
    """Compute the highest possible ratio by frames: each noise of its own leaves one key frame.

    With n noises, n frames remain of each step, and between steps `steps` first frames and n - 1 differences. Frames of
    independent noise never merge: at 1,024 values, the highest cosine of two of 256 noises is `highest_cosine`.
    """
    noise = np.asarray(torch.randn(max(frames), 1024, generator=generator_of(0)))
    found = similarities(noise) - 2 * np.eye(len(noise))
    return [
        {
            "frames": count,
            "independent": count * steps / (steps + count - 1),
            "freenoise": count * steps / (steps + min(count, window) - 1),
            "highest_cosine": float(found[:count, :count].max()),
        }
        for count in frames
    ]


def quality_rows(asked: argparse.Namespace, card: ModelCard, path: Path) -> Iterator[Row]:
    """Yield bytes, quality against fp16 and broken bounds by K and codec, of all pairs together."""
    judge, why_not = judge_of(asked.frames, None, asked.sprites)
    if why_not:
        print(f"{why_not}: no attribute is judged")
    profiler = CodecProfiler(
        load_family(card, device=asked.device), Encoder(encoder_folder(asked.encoder)), judge, asked.steps,
        max_rows=max(8, asked.frames), frames=asked.frames, of_runs=VARIANTS, together=scale_steps(OF_50, asked.steps),
    )  # fmt: skip
    pairs = of_part(asked, list(scene_pairs(asked.quality, asked.seed, grammar_of(asked.frames))))
    ks = scale_steps(asked.ks, asked.steps)
    codecs = [PLAIN, *(one for one in asked.codecs if one not in (NOISE, PLAIN))]
    wanted = [*([(0, NOISE)] if NOISE in asked.codecs else []), *((k, codec) for k in ks for codec in codecs)]
    records = measured_codecs(profiler, pairs, wanted, path, Remaining("pairs", len(pairs)).advance)
    for k in ks:
        for codec in codecs:
            right = attributes_of(records, k, codec, (k, "fp16"))
            yield {
                "k": k, "codec": codec, "frames": asked.frames, "pairs": len(pairs), "steps": asked.steps,
                "ratio": mean_bytes(records, k, "fp16") / mean_bytes(records, k, codec),
                "of_fp16": asdict(quality_of(records, k, codec, (k, "fp16"))),
                "attributes_of_fp16": asdict(right) if right else None,
                "broken": broken_bounds(records, k, codec),
            }  # fmt: skip


def measured(asked: argparse.Namespace, card: ModelCard, folder: Path, records: Path) -> list[Row]:
    """Return the rows of all clips; generate the states of clips that have neither states nor a row."""
    path = records / "clips.jsonl"
    known = {(row["frames"], row["seed"]): row for row in map(with_ks, read_records(path))}
    found = list[Row]()
    for frames, count in ((card.frames.default, asked.count), (card.frames.most, asked.long)):
        numbers = of_part(asked, range(count))
        missing = [number for number in numbers if (frames, number) not in known]
        for number, states in states_of(card, missing, frames, asked.steps, folder, asked.device):
            row = rounded(clip_row(read_states(states), number, card.frames.windows(frames)))
            known[frames, number] = row
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        found += [known[frames, number] for number in numbers]
    return found


def of_part(asked: argparse.Namespace, numbers: Sequence[Any]) -> Sequence[Any]:
    """Return every n-th of the clips or pairs, which one of n processes measures."""
    which, parts = map(int, asked.part.split("/"))
    return numbers[which - 1 :: parts]


def rounded(value: Any) -> Any:
    """Return the value with every float cut to DIGITS significant digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def with_ks(value: Any) -> Any:
    """Return a value read from JSON with numbers as keys where they are K."""
    if isinstance(value, dict):
        return {int(key) if key.isdecimal() else key: with_ks(one) for key, one in value.items()}
    return value


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:motion")
    parser.add_argument("--count", type=int, default=500, help="clips of the model's default length")
    parser.add_argument("--long", type=int, default=500, help="clips of the model's longest length")
    parser.add_argument("--steps", type=int, default=50, help="T of all runs")
    parser.add_argument("--quality", type=int, default=0, help="pairs of the comparison of quality")
    parser.add_argument("--frames", type=int, default=16, help="frames of the clips of that comparison")
    parser.add_argument("--ks", type=int, nargs="+", default=OF_50, help="K of 50 of that comparison")
    parser.add_argument("--codecs", nargs="+", default=QUALITY, choices=QUALITY, help="codecs of that comparison")
    parser.add_argument("--seed", type=int, default=7, help="seed of its pairs")
    parser.add_argument("--encoder", default="bundled:clip")
    parser.add_argument("--sprites", type=Path, default=SPRITES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th clip and pair from the I-th on; N processes")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of states")
    parser.add_argument("--records", type=Path, help="folder of the records (default: that of the states)")
    parser.add_argument("--arithmetic", action="store_true", help="print the highest possible ratios alone")
    asked = parser.parse_args(given)
    figures: dict[str, Any] = {"arithmetic": arithmetic(), "lengths": [], "quality": []}
    if asked.arithmetic:
        print(report(figures))
        return
    torch.set_num_threads(asked.threads)
    on, card = machine(), find_card(asked.model)
    folder = asked.work / f"clip_codecs-{card.weights_hash[:8]}-T{asked.steps}"
    records = asked.records / folder.name if asked.records else folder
    records.mkdir(parents=True, exist_ok=True)
    rows = measured(asked, card, folder, records) if asked.count or asked.long else []
    figures["lengths"] = [
        figures_of([row for row in rows if row["frames"] == frames]) for frames in sorted({r["frames"] for r in rows})
    ]
    if asked.quality:
        path = records / f"quality-{asked.frames}-{asked.seed}.jsonl"
        figures["quality"] = list(quality_rows(asked, card, path))
    print(report(figures))
    name = f"clip_codecs_t{asked.steps}" + (f"_quality_{asked.frames}" if asked.quality else "")
    settings = settings_of(asked) | {"model": card.name, "weights_hash": card.weights_hash}
    record(name, figures, settings, on=on, folder=asked.out)
    plot(figures, asked.out / f"{name}.png")


if __name__ == "__main__":
    main()
