"""Other wordings for a trained motion model: its text encoder learns to say with them what it says with a caption.

For a caption and another wording of it, the states of all tokens are matched one to one. The UNet reads states as a
set, so equal states at matched places give the same clip; their difference is measured as the UNet sees it. Only the
text encoder learns, and on captions it is held to its former states.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from services.trainer.export import average_into, replace_folder
from services.trainer.training.sitting import Sitting
from services.trainer.words import LENGTH, Words, sprinkled
from shared.models.scenes import CLIP_WORDINGS, clip_caption, free_wording, random_moving_scene

NAME = "motion-wordings"
MEASURED = ("README.md", "latency.json", "quality.json", "learned_bound.json", "*k_table_*.json")
"""Files of a model's folder that hold for its weights alone."""


SPARE = 0.1
"""Weight of the state of a word that stands for padding."""


@dataclass(frozen=True)
class WordingsPlan:
    """Training plan of the text encoder."""

    steps: int = 1500
    seed: int = 6
    rate: float = 1e-3
    batch: int = 64
    """Other wordings in a step, and as many captions."""
    captions: float = 2.0
    """Weight of the captions' states beside those of other wordings."""
    filler: float = 0.1
    """Share of the texts with words without meaning."""


def train_wordings(plan: WordingsPlan, model: Path, work: Path) -> None:
    """Train the text encoder of the exported model in `model` until the steps are over; another run continues."""
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    words, teacher = Words(CLIPTokenizer.from_pretrained(model / "tokenizer")), _encoder(model)
    student, seen = _encoder(model).requires_grad_(True), _seen(model)
    optimizer = torch.optim.AdamW(student.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.0)
    sitting = Sitting(NAME, work, {"model": student}, [optimizer], steps=plan.steps, rate=plan.rate)
    while (begun := sitting.begin_step(plan.seed)) is not None:
        free, kept = _losses(plan, words, teacher, student, seen, begun[1])
        sitting.end_step(free + plan.captions * kept)
        sitting.report(sitting.step * plan.batch, free=free.item(), captions=kept.item())
        if sitting.step % 100 == 0:
            sitting.save()
    sitting.save()
    sitting.plot()


def export_wordings(model: Path, work: Path, target: Path) -> None:
    """Write `model` to `target` with the trained text encoder, in fp16, without what was measured of the former one."""
    student = _encoder(model)
    average_into([student], work / f"{NAME}.pt")

    def write(folder: Path) -> None:
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns(*MEASURED), dirs_exist_ok=True)
        student.half().save_pretrained(folder / "text_encoder", safe_serialization=True)

    replace_folder(target, write)


def _encoder(model: Path) -> CLIPTextModel:
    return CLIPTextModel.from_pretrained(model / "text_encoder", dtype=torch.float32).eval().requires_grad_(False)


def _losses(
    plan: WordingsPlan, words: Words, teacher: CLIPTextModel, student: CLIPTextModel, seen: Tensor, rng: random.Random
) -> tuple[Tensor, Tensor]:
    """Return the mean squared error of the states of other wordings, and of captions, as the UNet sees them."""
    scenes = [(random_moving_scene(rng), rng.randrange(CLIP_WORDINGS)) for _ in range(plan.batch)]
    captions = [clip_caption(*one) for one in scenes]
    others = [free_wording(*one, rng) for one in scenes]
    said = [sprinkled(text, rng) if rng.random() < plan.filler else text for text in captions]
    said[0] = ""  # guidance asks for the empty prompt each time
    ids = [[words.ids(text) for text in texts] for texts in (captions, others, said)]
    with torch.no_grad():
        wanted, kept = _states(teacher, ids[0] + ids[2]).chunk(2)
    pairs = [matched(own, caption, words.end) for own, caption in zip(ids[1], ids[0], strict=True)]
    order, weight = (torch.tensor(each) for each in zip(*pairs, strict=True))
    found, still = _states(student, ids[1] + ids[2]).chunk(2)
    wanted = wanted.gather(1, order[..., None].expand_as(wanted))
    free = ((found - wanted) @ seen).square().mean(2)
    return (free * weight).sum() / weight.sum(), ((still - kept) @ seen).square().mean()


def _seen(model: Path) -> Tensor:
    """Return what the UNet sees of a state (width, width): a root of the sum of WᵀW over all layers that read states,
    scaled to mean square 1."""
    held = load_file(model / "unet" / "diffusion_pytorch_model.safetensors")
    reads = ("attn2.to_k.weight", "attn2.to_v.weight", "time_embedding.word.weight")
    weights = [each.float() for name, each in held.items() if name.endswith(reads) and "motion" not in name]
    values, vectors = torch.linalg.eigh(sum(each.T @ each for each in weights))
    return vectors * (values.clamp(min=0) * len(values) / values.sum()).sqrt()


def _states(encoder: CLIPTextModel, ids: Sequence[Sequence[int]]) -> Tensor:
    states: Tensor = encoder(input_ids=torch.tensor(ids)).last_hidden_state
    return states


def matched(own: Sequence[int], caption: Sequence[int], end: int) -> tuple[list[int], list[float]]:
    """Return for each token of `own` the place of its token in `caption`, each place once, and the weight of its state.
    Both have LENGTH tokens, padded with `end`.

    Words that both have are matched in their order, then padding with that at the same place, then what is left in its
    order. A word that stands for padding counts little: it has not seen what stands behind it."""
    places = [-1] * LENGTH
    for block in SequenceMatcher(None, own, caption, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            if own[block.a + offset] != end:
                places[block.a + offset] = block.b + offset
    for place in range(LENGTH):
        if own[place] == caption[place] == end:
            places[place] = place
    left = iter(sorted(set(range(LENGTH)).difference(places)))
    places = [next(left) if place < 0 else place for place in places]
    spare = [token != end == caption[place] for token, place in zip(own, places, strict=True)]
    return places, [SPARE if each else 1.0 for each in spare]
