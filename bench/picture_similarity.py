"""How similar a prompt is to the picture of another prompt, by how similar the two prompts are: for services/replay.

    python -m bench.picture_similarity --pictures 240

Pictures of the shipped trace's prompts are drawn with a bundled model and embedded by the bundled encoder, and compared
with other prompts of the same trace. The first half of the pictures makes the curve; the second half checks it: would a
lookup by the surrogate have allowed the start that a lookup by the pictures themselves allows?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.judging import open_encoder
from bench.recording import machine, table
from load.sessions import SHIPPED, read_trace
from services.gpu_worker.codecs import encode_png
from services.gpu_worker.engine import Engine
from services.gpu_worker.events import Finished, Left
from services.gpu_worker.families import load_family
from services.gpu_worker.rows import FromNoise, Task
from services.replay.surrogate import FILE, Curve, cosines_of
from shared.models.card import find_card
from shared.types import vector_from

KNOTS = 8
Floats = npt.NDArray[np.float64]


def drawn(model: str, prompts: Sequence[str], steps: int) -> list[bytes]:
    """One PNG per prompt, from noise."""
    card = find_card(model)
    engine = Engine({card.name: load_family(card, device="cpu")}, max_rows=8, tell_every_s=0.0)
    pictures: dict[int, bytes] = {}
    for number, prompt in enumerate(prompts):
        engine.submit(
            Task(str(number), card.name, prompt, card.default_size, steps, card.default_guidance, seed=number,
                 start=FromNoise(), capture_steps=())
        )  # fmt: skip
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Finished):
                pictures[int(event.id)] = encode_png(event.pixels)
                print(f"{len(pictures)} of {len(prompts)} pictures", flush=True) if len(pictures) % 20 == 0 else None
            elif isinstance(event, Left) and event.error is not None:
                raise event.error
    return [pictures[number] for number in range(len(prompts))]


def fitted(texts: Floats, pictures: Floats) -> tuple[Curve, tuple[float, float]]:
    """The curve over pairs of different prompts, and its ends; rows are unit vectors of prompts and their pictures."""
    between, across = texts @ texts.T, texts @ pictures.T  # [prompt, picture]
    own, other = float(np.diag(across).mean()), ~np.eye(len(texts), dtype=bool)
    near, seen = between[other], across[other]
    unrelated = float(seen[near <= np.quantile(near, 0.1)].mean())
    # half of the knots where most pairs are, half where the similar ones are
    edges = np.unique(np.quantile(near, [*np.linspace(0, 0.9, KNOTS // 2), 0.95, 0.98, 0.99, 0.997]))
    places, shares, spreads = [], [], []
    for low, high in zip(edges, [*edges[1:], 1.0], strict=True):
        inside = (near >= low) & (near <= high)
        if inside.sum() >= 30:
            share = (seen[inside] - unrelated) / (own - unrelated)
            places.append(float(near[inside].mean()))
            shares.append(float(share.mean()))
            spreads.append(float(share.std()))
    shares = np.maximum.accumulate([*shares, 1.0]).tolist()
    spread = float(((np.diag(across) - own) / (own - unrelated)).std())
    return Curve((*places, 1.0), tuple(shares), (*spreads, spread)), (unrelated, own)


def checked(curve: Curve, ends: tuple[float, float], texts: Floats, pictures: Floats) -> dict[str, float]:
    """On other pictures: correlation of surrogate and cosine; and of each prompt's best earlier picture, by either."""
    between, across = texts @ texts.T, texts @ pictures.T
    count = len(texts)
    rows = np.repeat(np.arange(count), count).reshape(count, count)
    made = cosines_of(curve, ends, rows.ravel(), rows.T.ravel(), between.ravel()).reshape(count, count)
    expected = ends[0] + (ends[1] - ends[0]) * curve.of(between, np.zeros_like(between))
    earlier = np.tril(np.ones((count, count), bool), -1)
    best = [(across[row, :row].max(), made[row, :row].max()) for row in range(20, count)]
    real, stand = np.array(best).T
    levels = np.quantile(real, [0.2, 0.4, 0.6, 0.8])
    allowed, allowed_by_stand = np.searchsorted(levels, real), np.searchsorted(levels, stand)
    return {
        "pairs": int(earlier.sum()),
        "correlation_of_mean": float(np.corrcoef(across[earlier], expected[earlier])[0, 1]),
        "correlation_with_chance": float(np.corrcoef(across[earlier], made[earlier])[0, 1]),
        "best_mean": float(real.mean()),
        "best_mean_of_surrogate": float(stand.mean()),
        "levels_mean": float(allowed.mean()),
        "levels_mean_of_surrogate": float(allowed_by_stand.mean()),
        "same_level": float((allowed == allowed_by_stand).mean()),
        "within_one_level": float((abs(allowed - allowed_by_stand) <= 1).mean()),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--pictures", type=int, default=240)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    prompts = list(dict.fromkeys(one.prompt for one in read_trace(SHIPPED)))[: asked.pictures]
    encoder = open_encoder("bundled:clip")
    pngs = drawn(asked.model, prompts, asked.steps)
    texts = np.stack([vector_from(one.vector) for one in encoder.texts(prompts)]).astype(np.float64)
    pictures = np.concatenate([
        [vector_from(one.vector) for one in encoder.images(pngs[at : at + 32])] for at in range(0, len(pngs), 32)
    ]).astype(np.float64)  # fmt: skip
    half = len(prompts) // 2
    curve, ends = fitted(texts[:half], pictures[:half])
    check = checked(curve, ends, texts[half:], pictures[half:])
    print(table(("prompts' similarity", "share", "spread"), list(zip(*vars(curve).values(), strict=True))))
    print(json.dumps(check, indent=1))
    card = find_card(asked.model)
    found: dict[str, Any] = {
        **vars(curve),
        "ends": ends,
        "check": check,
        "pictures": len(prompts),
        "model": card.name,
        "weights_hash": card.weights_hash,
        "encoder_hash": encoder.hash,
        "machine": machine(),
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
