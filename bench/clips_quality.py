"""Quality of clips: from noise at each T, and from another clip's state at each K.

    afterimage profile --model motion --steps 10 --k 5,10,15,20,25 --pairs 192 --no-variety --out out/profile-motion
    python -m bench.clips_quality --count 64 --profile out/profile-motion
    python -m bench.clips_quality --model out/train/models/motion --count 256 --steps 50    (a model trained anew)
    python -m bench.clips_quality --count 128 --steps 10 --free-wordings --out out/bench
    python -m bench.clips_quality --count 128 --steps    (no T: only rendered clips, which judge the judge)
    python -m bench.clips_quality --tiny --threads 1    (two prompts, T = 2 and 1: does the command work?)

*From noise*: clips of held-out moving scenes, the same prompts and seeds at every T, judged by
`services.trainer.judging`. *Smooth* is the mean cosine of the CLIP vectors of adjacent frames (FlexCache's CLIP-SIM).
Beside them: the same scenes as the renderer paints them, which is the most that the judge reads, and after a *round
trip* through the model's autoencoder. The prompts are captions, or with --free-wordings other wordings of the same
scenes, of words that `services.trainer motion wordings` teaches. Each of the first 16 prompts has a sheet beside the
rows, with a line per T.

*From a state*: the pairs of a profile of clips. The first prompt of a pair has its states after K stored, and the
second prompt runs the steps after K. K of T = 10 have the noise levels of K = 5, 10, … of T = 50, the K of the papers,
at a fifth of the cost. The profile itself resumes.

Rows are appended to --rows after each chunk, and a later run generates only the missing clips. Intervals are of 95 %:
bootstrapped over prompts for shares and means, Fieller's bounds (each one-sided) for ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.learned_bound import read_profile
from bench.measuring.clip_figures import NAMES, RENDERED, ROUND_TRIP, Row, from_noise, from_states, report
from bench.measuring.judging import open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of
from services.cli.profiles.judging import SPRITES, Judge, judge_of, shipped_judge, vectors_of
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, Left
from services.gpu_worker.engine.rows import Pixels, Task
from services.gpu_worker.families import Family, load_family
from services.trainer.judging.classifier import FILE
from services.trainer.judging.motion import SEED, moving_scenes
from services.trainer.rendering.clips import render_clip
from services.trainer.rendering.renderer import LAYOUTS, Renderer
from services.trainer.training.runs import save_grid
from shared.domain.types import vector_from
from shared.models import find_card
from shared.models.scenes import CLIP_WORDINGS, MovingScene, clip_caption, free_wording
from shared.runtime.progress import Remaining

STEPS = (50, 25, 20, 10, 5, 4)
MOST = 256
"""Prompts that are balanced together; the first --count of them are used."""
SHEETS, COLUMNS = 16, 8
"""Prompts that have a sheet; frames in a line, evenly spaced."""


def generated(
    family: Family, asked: Mapping[tuple[int, int], str], batch: int, guidance: float
) -> dict[tuple[int, int], Pixels]:
    """Generate clips from noise, `batch` at a time. asked: (number, T) → prompt; the number is the seed."""
    card, frames = family.card, family.card.frames.default
    engine, found = Engine({card.name: family}, max_rows=batch * frames), {}
    names = {f"{number}/{steps}": (number, steps) for number, steps in asked}
    for name, (number, steps) in names.items():
        engine.submit(Task(name, card.name, asked[number, steps], card.default_size, steps, guidance, number, frames))
    while not engine.idle:
        for event in engine.step():
            match event:
                case Finished(id=name, pixels=pixels):
                    found[names[name]] = pixels
                case Left(error=error):
                    raise error
    return found


def rendered(painter: Renderer, family: Family, scene: MovingScene, number: int, of: int) -> Pixels:
    """Render the scene's clip; of: RENDERED or ROUND_TRIP."""
    size, frames = family.card.default_size, family.card.frames.default
    clip = render_clip(painter, scene, size.width, size.height, number % LAYOUTS, frames).pixels
    return family.decode(family.encode_picture(clip, frames)) if of == ROUND_TRIP else clip


def save_sheets(clips: Mapping[tuple[int, int], Pixels], path: Path) -> None:
    """Save the clips of each of the first prompts beside `path`: the largest T above, rendered clips below."""
    for number in sorted({n for n, _ in clips if n < SHEETS}):
        own = sorted((of for n, of in clips if n == number), reverse=True)
        looks = [np.linspace(0, len(clips[number, of]) - 1, COLUMNS).round().astype(int) for of in own]
        frames = [frame for of, at in zip(own, looks, strict=True) for frame in clips[number, of][at]]
        names = "_".join(NAMES.get(of, str(of)).replace(" ", "-") for of in own)
        save_grid(frames, COLUMNS, path.with_name(f"{path.stem}-{number:02}-{names}.png"), scale=2)


def said(scene: MovingScene, number: int, free: bool) -> str:
    """Return the caption, or with `free` other words for its motion and its place."""
    wording = number % CLIP_WORDINGS
    return free_wording(scene, wording, random.Random(number), share=1.0) if free else clip_caption(scene, wording)


def row_of(
    number: int, steps: int, clip: Pixels, prompt: str, scene: MovingScene, encoder: Encoder, judge: Judge | None
) -> Row:
    """Return the record of one clip."""
    text = vector_from(encoder.texts([prompt])[0].vector)
    frames = np.stack(vectors_of(encoder, list(clip)))
    return {
        "number": number,
        "steps": steps,
        "clip": max(float(vectors_of(encoder, [clip])[0] @ text), 0.0),
        "smooth": float((frames[:-1] * frames[1:]).sum(axis=1).mean()),
        "right": judge([clip], scene)[0] if judge else {},
    }


def resumed(path: Path, about: Mapping[str, Any]) -> list[Row]:
    """Return the rows of earlier runs; begin the file if there is none. ValueError if it has other settings."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about) + "\n", encoding="utf-8")
    first, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if json.loads(first) != about:
        raise ValueError(f"{path}: was measured with other settings; move the file away, or choose other --rows")
    whole = [line for line in lines if line.endswith("\n")]  # a killed run may leave a part of a line
    path.write_text(first + "".join(whole), encoding="utf-8")
    return [json.loads(line) for line in whole]


def measured(asked: argparse.Namespace, family: Family, encoder: Encoder) -> list[Row]:
    """Return the rows of all prompts and T, and of rendered clips, each with its scene's motion; make those that
    earlier runs did not."""
    card, frames = family.card, family.card.frames.default
    judge, why_not = judge_of(frames, asked.judge, asked.sprites)
    if why_not:
        print(f"{why_not}: no attribute is judged, and no clip is rendered")
    about = {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash, "seed": asked.seed, "frames": frames}
    folder = asked.judge or shipped_judge(frames)
    about |= {"judge": hashlib.sha256((folder / FILE).read_bytes()).hexdigest()[:16] if judge else ""}
    about |= {} if asked.guidance is None else {"guidance": asked.guidance}
    about |= {"wordings": "free"} if asked.free_wordings else {}
    guidance = card.default_guidance if asked.guidance is None else asked.guidance
    kind = "-free" if asked.free_wordings else ""
    path = asked.rows or Path(f"out/bench/clips_quality-{card.weights_hash[:8]}{kind}.jsonl")
    rows = resumed(path, about)
    scenes, done = moving_scenes(MOST, asked.seed), {(row["number"], row["steps"]) for row in rows}
    prompts = [said(scene, number, asked.free_wordings) for number, scene in enumerate(scenes)]
    painter = Renderer(asked.sprites) if judge else None
    wanted = [*asked.steps, *((RENDERED, ROUND_TRIP) if painter else ())]
    missing = [(n, of) for n in range(asked.count) for of in wanted if (n, of) not in done]
    remaining = Remaining("steps", sum(max(of, 1) for _, of in missing))
    for chunk in _chunks(missing, asked.batch * len(wanted)):
        clips = generated(family, {(n, of): prompts[n] for n, of in chunk if of > 0}, asked.batch, guidance)
        if painter is not None:
            clips |= {(n, of): rendered(painter, family, scenes[n], n, of) for n, of in chunk if of <= 0}
        found = [row_of(n, of, clip, prompts[n], scenes[n], encoder, judge) for (n, of), clip in clips.items()]
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in found))
        save_sheets(clips, path)
        rows += found
        remaining.advance(sum(max(of, 1) for _, of in chunk))
    rows = [row for row in rows if row["steps"] in wanted and row["number"] < asked.count]
    return [{**row, "motion": scenes[row["number"]].motion} for row in rows]


def _chunks(items: Sequence[tuple[int, int]], size: int) -> Iterator[Sequence[tuple[int, int]]]:
    return (items[at : at + size] for at in range(0, len(items), size or 1))


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:motion", help="bundled:NAME, or a folder")
    parser.add_argument("--encoder", default="bundled:clip")
    parser.add_argument("--count", type=int, default=64, help="prompts from noise; 0: none")
    parser.add_argument(
        "--steps", type=int, nargs="*", default=STEPS, help="numbers of steps T; none: only rendered clips"
    )
    parser.add_argument("--batch", type=int, default=2, help="clips that share each step")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the moving scenes")
    parser.add_argument("--guidance", type=float, help="default: that of the model's card")
    parser.add_argument(
        "--free-wordings", action="store_true", help='other words for motions and places, as in "swims left"'
    )
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--profile", type=Path, help="folder that `afterimage profile` wrote for this model")
    parser.add_argument("--sprites", type=Path, default=SPRITES, help="folder of the trainer's sprites")
    parser.add_argument("--judge", type=Path, help="folder of the judge of clips; default: the one that ships")
    parser.add_argument("--rows", type=Path, help="file of the rows; default: in out/bench")
    parser.add_argument("--tiny", action="store_true", help="two prompts, T = 2 and 1")
    asked = parser.parse_args(given)
    if asked.tiny:
        asked.count, asked.steps = 2, [2, 1]
    if not 0 <= asked.count <= MOST:
        parser.error(f"--count: must be from 0 to {MOST} (got {asked.count})")
    quiet()
    torch.set_num_threads(asked.threads)
    on, card, begun = machine(), find_card(asked.model), time.monotonic()
    encoder = open_encoder(asked.encoder)
    figures: dict[str, Any] = {"from_noise": [], "from_states": []}
    if asked.count:
        figures["from_noise"] = from_noise(measured(asked, load_family(card, device="cpu"), encoder))
    about = settings_of(asked) | {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash}
    if asked.profile:
        first, by_steps = read_profile(asked.profile)
        if first["weights_hash"] != card.weights_hash:
            parser.error(f"--profile: {asked.profile} was measured with other weights than {asked.model}")
        figures["from_states"] = from_states(by_steps[first["steps"]])
        about |= {f"profile_{name}": first[name] for name in ("steps", "ks", "seed", "codec", "judged")}
    print(report(figures))
    record("clips_quality", figures, about | {"seconds": time.monotonic() - begun}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
