"""Similarity of a prompt to another prompt's image, as a function of the two prompts' similarity: for services/replay.

    python -m bench.picture_similarity --pictures 240

A bundled model generates images of the shipped trace's prompts. The bundled encoder embeds the images, and they are
compared with other prompts of the trace. The first half of the images makes the curve. The second half checks it:
does a lookup by the surrogate allow the same start as a lookup by the images themselves?

    python -m bench.picture_similarity --retrieval --pictures 498 --steps 20

This command compares the two ways to search a cache of images (MoDM §3.2, Figs. 2 and 3). Every second distinct prompt
of the trace has its image in the cache. The other prompts retrieve one image each: by similarity of the two prompts,
and by similarity of prompt and image. The CLIP score of the retrieved image favours the second way by construction,
because the second way maximises this score. The attributes that the judge net recognises favour neither way.
"""

from __future__ import annotations

import argparse
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.measuring.judging import Verdict, judge_pictures, open_encoder
from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import RESULTS, machine, record, table
from load.sessions import SHIPPED, SHIPPED_SEED, Prompt, read_trace
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, Left
from services.gpu_worker.engine.rows import FromNoise, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import encode_png
from services.replay.results.compare import interval
from services.replay.traces.surrogate import FILE, Curve, cosines_of
from shared.domain.types import vector_from
from shared.models.card_lookup import find_card
from shared.runtime.progress import Remaining

KNOTS = 8
RETRIEVAL = "picture_retrieval"
WAYS = {"text": "text-to-text", "image": "text-to-image"}
SCORES = {
    "clip": "CLIP score",
    "attributes": "attributes matched, of 8",
    "object": "object matched",
    "background": "background matched",
}
EXAMPLES = 5
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def drawn(model: str, prompts: Sequence[str], steps: int) -> list[bytes]:
    """Return one PNG per prompt, generated from noise."""
    card = find_card(model)
    engine = Engine({card.name: load_family(card, device="cpu")}, max_rows=8, tell_every_s=0.0)
    pictures: dict[int, bytes] = {}
    remaining = Remaining("pictures", len(prompts))
    for number, prompt in enumerate(prompts):
        engine.submit(
            Task(str(number), card.name, prompt, card.default_size, steps, card.default_guidance, seed=number,
                 start=FromNoise(), capture_steps=())
        )  # fmt: skip
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Finished):
                pictures[int(event.id)] = encode_png(event.pixels)
                remaining.advance()
            elif isinstance(event, Left) and event.error is not None:
                raise event.error
    return [pictures[number] for number in range(len(prompts))]


def fitted(texts: Floats, pictures: Floats) -> tuple[Curve, tuple[float, float]]:
    """Fit the curve over pairs of different prompts; return the curve, and the mean cosines of unrelated and of own
    images. Rows are unit vectors of prompts and their images."""
    between, across = texts @ texts.T, texts @ pictures.T  # [prompt, picture]
    own, other = float(np.diag(across).mean()), ~np.eye(len(texts), dtype=bool)
    near, seen = between[other], across[other]
    unrelated = float(seen[near <= np.quantile(near, 0.1)].mean())
    # half of the knots where most pairs are, half where the similar pairs are
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
    """Check the curve on other images: correlation of surrogate and cosine, also for each prompt's best earlier
    image."""
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


def retrieved(asked: Floats, texts: Floats, images: Floats) -> dict[str, Ints]:
    """Return for each way the number of the cached image that every prompt in `asked` retrieves; rows: unit vectors."""
    return {"text": (asked @ texts.T).argmax(axis=1), "image": (asked @ images.T).argmax(axis=1)}


def scores_of(verdicts: Sequence[Verdict]) -> dict[str, Floats]:
    """Return score → one value per prompt; attributes only if a judge net read them."""
    found = {"clip": np.array([one.clip for one in verdicts])}
    if all(one.right for one in verdicts):
        found["attributes"] = np.array([float(sum(one.right.values())) for one in verdicts])
        found |= {name: np.array([float(one.right[name]) for one in verdicts]) for name in ("object", "background")}
    return found


def compared(by: Mapping[str, Mapping[str, Floats]], chosen: Mapping[str, Ints], users: Ints) -> dict[str, Any]:
    """Return the means of both searches, and the paired difference with its 95 % bootstrap interval over users."""
    differ = chosen["text"] != chosen["image"]
    scores = {}
    for name, text in by["text"].items():
        more = by["image"][name] - text
        scores[name] = {
            "text": fmean(text),
            "image": fmean(by["image"][name]),
            "difference": fmean(more),
            "difference_95": interval(more, users),
            "better": fmean(more > 0),
            "worse": fmean(more < 0),
        }
    return {"prompts": len(users), "other_image": fmean(differ), "scores": scores}


def retrieval_report(figures: Mapping[str, Any]) -> str:
    rows = [
        [SCORES[name], f"{one['text']:.3f}", f"{one['image']:.3f}",
         "{:+.3f} ({:+.3f} to {:+.3f})".format(one["difference"], *one["difference_95"]),
         f"{one['better']:.1%}", f"{one['worse']:.1%}"]
        for name, one in figures["scores"].items()
    ]  # fmt: skip
    heads = ["retrieved image", *WAYS.values(), "difference (95 % over users)", "better", "worse"]
    return (
        f"{table(heads, rows)}\n\n{figures['prompts']} prompts; the two ways retrieve different images for "
        f"{figures['other_image']:.1%} of them"
    )


def examples_of(by: Mapping[str, Mapping[str, Floats]]) -> list[int]:
    """Return the indices of the prompts where the two ways differ most in attributes; gains and losses of the second
    way in the proportion in which they occur."""
    more = by["image"]["attributes"] - by["text"]["attributes"]
    better, worse = int((more > 0).sum()), int((more < 0).sum())
    losses = round(EXAMPLES * worse / max(better + worse, 1))
    order = np.argsort(-more, kind="stable")
    return [*order[: EXAMPLES - losses].tolist(), *order[len(order) - losses :].tolist()]


def retrieval_plot(
    by: Mapping[str, Mapping[str, Floats]],
    chosen: Mapping[str, Ints],
    prompts: Sequence[str],
    pngs: Sequence[bytes],
    path: Path,
) -> None:
    """Plot the distributions of Fig. 2 (attributes in place of PickScore), and examples as in Fig. 3."""
    pyplot = pyplot_or_none()
    if pyplot is None or "attributes" not in by["text"]:
        return
    figure = pyplot.figure(figsize=(9, 7), layout="constrained")
    grid = figure.add_gridspec(3, 2 * EXAMPLES, height_ratios=(2, 1, 1))
    for place, name in enumerate(("clip", "attributes")):
        axes = figure.add_subplot(grid[0, place * EXAMPLES : (place + 1) * EXAMPLES])
        bins = np.linspace(-0.2, 1, 49) if name == "clip" else np.arange(-0.5, 9)
        for way, title in WAYS.items():
            axes.hist(by[way][name], bins=bins, alpha=0.5, label=f"{title}, mean {by[way][name].mean():.3f}")
        axes.set(xlabel=f"retrieved image: {SCORES[name]}", ylabel="prompts")
        axes.legend(fontsize=8)
    for place, number in enumerate(examples_of(by)):
        for row, way in enumerate(WAYS, 1):
            axes = figure.add_subplot(grid[row, 2 * place : 2 * place + 2])
            axes.imshow(pyplot.imread(io.BytesIO(pngs[chosen[way][number]])))
            axes.set(xticks=[], yticks=[], xlabel=f"{by[way]['attributes'][number]:.0f} of 8")
            if row == 1:
                axes.set_title(textwrap.fill(prompts[number], 26), fontsize=6)
            if place == 0:
                axes.set_ylabel(WAYS[way], fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def compare_retrieval(asked: argparse.Namespace) -> None:
    """Compare both searches of a cache of images, over prompts that the cache does not hold."""
    on, card = machine(), find_card(asked.model)
    distinct: dict[str, Prompt] = {}
    for row in read_trace(SHIPPED):
        distinct.setdefault(row.prompt, row)
    cached, queries = list(distinct.values())[::2][: asked.pictures], list(distinct.values())[1::2]
    encoder, prompts = open_encoder("bundled:clip"), [row.prompt for row in queries]
    pngs = drawn(asked.model, [row.prompt for row in cached], asked.steps)
    texts, own = (
        np.stack([vector_from(one.vector) for one in encoder.texts([row.prompt for row in rows])]).astype(np.float64)
        for rows in (cached, queries)
    )
    chosen = retrieved(own, texts, embedded_images(encoder, pngs))
    scenes, numbers = [row.scene for row in queries], range(len(queries))
    by = {}
    for way, places in chosen.items():
        found = judge_pictures({number: pngs[places[number]] for number in numbers}, prompts, scenes, encoder)
        by[way] = scores_of([found[number] for number in numbers])
    figures = compared(by, chosen, np.array([row.user for row in queries]))
    print(retrieval_report(figures))
    settings = {
        "cached_images": len(cached), "steps": asked.steps, "model": card.name, "weights_hash": card.weights_hash,
        "encoder_hash": encoder.hash, "trace_seed": SHIPPED_SEED,
    }  # fmt: skip
    command = f"python -m bench.picture_similarity --retrieval --pictures {len(cached)} --steps {asked.steps}"
    record(RETRIEVAL, figures, settings, on=on, folder=asked.out or RESULTS, command=command)
    retrieval_plot(by, chosen, prompts, pngs, (asked.out or RESULTS) / f"{RETRIEVAL}.png")


def embedded_images(encoder: Encoder, pngs: Sequence[bytes]) -> Floats:
    return np.concatenate([
        [vector_from(one.vector) for one in encoder.images(pngs[at : at + 32])] for at in range(0, len(pngs), 32)
    ]).astype(np.float64)  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--pictures", type=int, default=240)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--retrieval", action="store_true", help="compare the two searches of a cache of images")
    parser.add_argument("--out", type=Path, help="file of the curve; with --retrieval a folder of results")
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    if asked.retrieval:
        compare_retrieval(asked)
        return
    prompts = list(dict.fromkeys(one.prompt for one in read_trace(SHIPPED)))[: asked.pictures]
    encoder = open_encoder("bundled:clip")
    pngs = drawn(asked.model, prompts, asked.steps)
    texts = np.stack([vector_from(one.vector) for one in encoder.texts(prompts)]).astype(np.float64)
    pictures = embedded_images(encoder, pngs)
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
    (asked.out or FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
