"""Bytes of the states of clips by codec, for replays: writes services/replay/traces/clip_bytes.json.

    python -m bench.replays.clip_bytes --count 20

Each clip runs from noise with independent noise of its frames. The states after 1 to 5 steps of T = 10 have the noise
levels of K = 5 to 25 of T = 50, at a fifth of the cost. A hit stores only the states after its start (FlexCache
§4.2.4), so `keyframes` codes each such set of states. Masks are the renderer's own for the same scenes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.clip_codecs import OTHERS, encode_each, rows_of
from bench.measuring.clip_states import States, read_states, states_of
from bench.measuring.recording import share, table
from services.gpu_worker.jobs.codecs import encode_run
from services.gpu_worker.jobs.keyframes import Keyframes
from services.replay.traces.clip_bytes import FILE, STEPS
from services.trainer.rendering.clips import render_clip
from services.trainer.rendering.renderer import LATTICE, Renderer
from shared.domain.cached import NEEDS
from shared.domain.latent_cells import on_cells
from shared.domain.masks import pack
from shared.models import find_card
from shared.models.scenes.motion import random_moving_scene

T = 10
KEYFRAMES = {"keyframes": Keyframes(), "keyframes-paper": Keyframes(0.99, 0.0)}
"""`keyframes` with the default floor of .995, and the paper's rule without a floor (keyframe_least = 0)."""
Coded = dict[str, dict[str, list[float]]]
"""First stored K → K → [bytes relative to fp16, needed K or 0]."""


def states_bytes(states: States, seed: int, windows: tuple[int, int]) -> dict[str, Coded]:
    """Return one clip's bytes by codec. states: by K of 50."""
    plain = 2 * next(iter(states.values())).size
    found: dict[str, Coded] = {name: {} for name in (*KEYFRAMES, *OTHERS)}
    each = {name: encode_each(states, name, seed, windows) for name in OTHERS}
    for first in STEPS:
        stored = {k: latent for k, latent in states.items() if k >= first}
        for name, codec in KEYFRAMES.items():
            coded = encode_run(stored, codec)
            found[name][str(first)] = {
                str(k): [round(len(data) / plain, 5), int(said.partition(NEEDS)[2] or 0)]
                for k, (data, said) in sorted(coded.items())
            }
        for name in OTHERS:
            found[name][str(first)] = {str(k): [round(len(each[name][k]) / plain, 5), 0] for k in stored}
    return found


def mask_bytes(renderer: Renderer, number: int, frames: int) -> int:
    """Return the bytes of the true masks of a clip's scene on its latent grid."""
    clip = render_clip(renderer, random_moving_scene(random.Random(number)), frames=frames)
    cells = on_cells(clip.masks, LATTICE)
    return len(pack(cells, ~cells))


def breakdown(states: States, codec: Keyframes) -> dict[str, float]:
    """Return the frames of a coded run: first frames, differences, extra frames (FlexCache §4.3, Fig. 13)."""
    parts = codec.split({k: rows_of(latent) for k, latent in states.items()})
    differences = len(next(iter(parts.values())).common)
    return {
        "first": len(parts),
        "differences": differences,
        "extra": sum(len(part.stored) - 1 for part in parts.values()),
        "all": len(parts) * len(rows_of(next(iter(states.values())))),
    }


def clips(asked: argparse.Namespace) -> Iterator[States]:
    card = find_card("bundled:motion")
    folder = asked.work / f"clip_codecs-{card.weights_hash[:8]}-T{T}"
    for _, path in states_of(card, range(asked.count), card.frames.default, T, folder, "cpu"):
        yield {k * 50 // T: latent for k, latent in read_states(path).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="clips")
    parser.add_argument("--sprites", type=Path, default=Path("out/train/sprites"), help="folder of the sprites")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the states")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    card, renderer = find_card("bundled:motion"), Renderer(asked.sprites)
    codecs: dict[str, list[Coded]] = {}
    masks, frames, plain = list[float](), dict[str, list[dict[str, float]]](), 0
    for number, states in enumerate(clips(asked)):
        plain = 2 * next(iter(states.values())).size
        for name, coded in states_bytes(states, number, card.frames.windows(card.frames.default)).items():
            codecs.setdefault(name, []).append(coded)
        for name, codec in KEYFRAMES.items():
            frames.setdefault(name, []).append(breakdown(states, codec))
        masks.append(round(mask_bytes(renderer, number, card.frames.default) / plain, 5))
    mean = {name: {key: float(np.mean([one[key] for one in of])) for key in of[0]} for name, of in frames.items()}
    found: dict[str, Any] = {
        "model": card.name, "weights_hash": card.weights_hash, "frames": card.frames.default, "fp16_bytes": plain,
        "clips": asked.count, "frames_stored": mean, "codecs": codecs, "masks": masks,
    }  # fmt: skip
    FILE.write_text(json.dumps(found) + "\n", encoding="utf-8")
    ratios = {name: [len(STEPS) / sum(k[0] for k in one["5"].values()) for one in of] for name, of in codecs.items()}
    rows = [[name, *(f"{q:.2f}" for q in (np.mean(r), min(r), max(r)))] for name, r in ratios.items()]
    print(table(["codec", "ratio, mean", "worst", "best"], rows))
    print(f"masks: {share(float(np.mean(masks)))} of one fp16 state; frames: {mean}; wrote {FILE}")


if __name__ == "__main__":
    main()
