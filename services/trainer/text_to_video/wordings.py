"""Other wordings for a trained motion model: its text encoder learns to give them the states of a caption.

For a caption and another wording of it, the states of all tokens are matched one to one. The UNet reads states as a
set, so equal states at matched places give the same clip; their difference is measured as the UNet's attention and its
features of words see it. Only the text encoder learns, and on captions it is held to its former states.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from services.trainer.export import average_into, replace_folder
from services.trainer.training.sitting import Sitting
from services.trainer.words import LENGTH, Words, sprinkled
from shared.models.card_lookup import find_card, write_card
from shared.models.scenes import CLIP_WORDINGS, clip_caption, free_wording, known_words, random_moving_scene
from shared.models.scenes.free_wordings import free_words

NAME = "motion-wordings"
KEPT = ("model_index.json", "scheduler", "tokenizer", "unet", "vae")
"""Parts of a model's folder that hold for other weights of its text encoder, too."""


SPARE = 0.1
"""Weight of the state of a word that is matched with padding."""


@dataclass(frozen=True)
class WordingsPlan:
    """Training plan of the text encoder."""

    steps: int = 2200
    seed: int = 6
    rate: float = 1e-3
    batch: int = 64
    """Other wordings in a step, and as many captions."""
    captions: float = 2.0
    """Weight of the captions' states beside those of other wordings."""
    filler: float = 0.1
    """Share of the captions with words without meaning."""


def train_wordings(plan: WordingsPlan, model: Path, work: Path) -> None:
    """Train the text encoder of the exported model in `model` until the steps are over; another run continues."""
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    words, teacher = Words(CLIPTokenizer.from_pretrained(model / "tokenizer")), _encoder(model)
    student, seen = _encoder(model).requires_grad_(True), _seen(model)
    optimizer = torch.optim.AdamW(student.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.0)
    sitting = Sitting(_name(model), work, {"model": student}, [optimizer], steps=plan.steps, rate=plan.rate)
    while (begun := sitting.begin_step(plan.seed)) is not None:
        others, captions = _losses(plan, words, teacher, student, seen, begun[1])
        sitting.end_step(others + plan.captions * captions)
        sitting.report(sitting.step * plan.batch, others=others.item(), captions=captions.item())
        if sitting.step % 100 == 0:
            sitting.save()
    sitting.save()
    sitting.plot()


def export_wordings(model: Path, work: Path, target: Path) -> None:
    """Write `model` to `target` with the trained text encoder, in fp16, without the measurements of the old one."""
    student = _encoder(model)
    average_into([student], work / f"{_name(model)}.pt")

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for part in KEPT:
            copy = shutil.copytree if (model / part).is_dir() else shutil.copyfile
            copy(model / part, folder / part)
        card = find_card(str(model))
        write_card(replace(card, other_words=tuple(sorted(free_words() - {*card.words, *known_words()}))), folder)
        student.half().save_pretrained(folder / "text_encoder", safe_serialization=True)

    replace_folder(target, write)


def _name(model: Path) -> str:
    """Return the name of the run's files: a model with other weights is another run."""
    weights = (model / "text_encoder" / "model.safetensors").read_bytes()
    return f"{NAME}-{hashlib.sha256(weights).hexdigest()[:8]}"


def _encoder(model: Path) -> CLIPTextModel:
    return (
        CLIPTextModel.from_pretrained(model / "text_encoder", dtype=torch.float32, use_safetensors=True)
        .eval()
        .requires_grad_(False)
    )


def _losses(
    plan: WordingsPlan, words: Words, teacher: CLIPTextModel, student: CLIPTextModel, seen: Tensor, rng: random.Random
) -> tuple[Tensor, Tensor]:
    """Return the mean squared error of the states of other wordings, and of captions, as the UNet reads them.

    seen: how it reads them (`_seen`)."""
    scenes = [(random_moving_scene(rng), rng.randrange(CLIP_WORDINGS)) for _ in range(plan.batch)]
    captions = [clip_caption(*one) for one in scenes]
    others = [free_wording(*one, rng) for one in scenes]
    kept = [sprinkled(text, rng) if rng.random() < plan.filler else text for text in captions]
    kept[0] = ""  # guidance asks for the empty prompt each time
    ids = [[words.ids(text) for text in texts] for texts in (captions, others, kept)]
    with torch.no_grad():
        wanted, former = _states(teacher, ids[0] + ids[2]).chunk(2)
    pairs = [matched(own, caption, words.end) for own, caption in zip(ids[1], ids[0], strict=True)]
    order, weight = (torch.tensor(each) for each in zip(*pairs, strict=True))
    found, now = _states(student, ids[1] + ids[2]).chunk(2)
    wanted = wanted.gather(1, order[..., None].expand_as(wanted))
    error = ((found - wanted) @ seen).square().mean(2)
    return (error * weight).sum() / weight.sum(), ((now - former) @ seen).square().mean()


def _seen(model: Path) -> Tensor:
    """Return a root (width, width) of the sum of WᵀW over the layers that read single states, scaled to mean square 1.

    The layer that pools all states into one vector is left out."""
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

    Words that both have are matched in their order, then padding at equal places, then the rest in its order. A word
    that is matched with padding has a small weight: its state cannot depend on later tokens."""
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
