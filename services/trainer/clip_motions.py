"""Words of motions for the trained text tower: prompts of clips whose motions differ become dissimilar.

Only the embeddings of the new words are trained. So the vectors of all other texts, and of images, stay
bit-identical, and K tables of images stay valid.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import CLIPModel, CLIPTokenizer

from services.trainer.clip_pair import embed_text
from services.trainer.export import average_into, replace_folder
from services.trainer.training.sitting import Sitting
from services.trainer.words import Words, with_words
from shared.domain.errors import ConfigurationError
from shared.models.scenes import (
    BACKGROUND_MOTIONS,
    CLIP_EDITS,
    CLIP_WORDINGS,
    MOTIONS,
    MovingScene,
    clip_caption,
    edit_clip,
    motion_words,
    random_moving_scene,
    still_caption,
    with_motion,
)

NAME = "clip-motions"
NEUTRAL = ("to", "over", "while", "background", "moves", "move", "runs", "run", "goes", "go", "get", "gets", "still")
"""Words that name no motion on their own."""
CHECKED = 300
"""Scenes whose similarities are reported after the training."""


@dataclass(frozen=True)
class MotionWordsPlan:
    """Training plan of the words. A group is one scene with every motion, both backgrounds, and two edits."""

    steps: int = 1600
    seed: int = 5
    rate: float = 5e-3
    groups: int = 8
    motion: float = 1.2
    """Weight of the objects' motion beside that of the scene, which is 1."""
    drift: float = 1.5
    """Weight of a background that drifts."""
    within: float = 12.0
    """Weight of a pair within a group, in the loss."""
    neutral: float = 0.15
    """Share of the captions with a neutral word at a random place."""


def train_motion_words(plan: MotionWordsPlan, work: Path, pair: Path) -> dict[str, list[float]]:
    """Train until the steps are over, write `work/clip-motions.pt`, and return the similarities (`similarities`).

    pair: folder of the exported pair."""
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    model, words = _begin(pair)
    optimizer = torch.optim.AdamW([_table(model)], lr=plan.rate, weight_decay=0.0)
    sitting = Sitting(NAME, work, {"model": model}, [optimizer], steps=plan.steps, rate=plan.rate, decay=0.99)
    while (begun := sitting.begin_step(plan.seed)) is not None:
        loss = _loss(model, words, plan, begun[1])
        sitting.end_step(loss)
        sitting.report(sitting.step * plan.groups, squares=loss.item())
        if sitting.step % 200 == 0:
            sitting.save()
    sitting.save()
    sitting.plot()
    sitting.average.swap()
    return similarities(model, words)


def export_motion_words(work: Path, pair: Path, target: Path) -> None:
    """Write the pair of `pair` to `target` with the trained words, in fp16; its other files stay as they are."""
    model, words = _begin(pair)
    average_into([model], work / f"{NAME}.pt")

    def write(folder: Path) -> None:
        model.half().save_pretrained(folder, safe_serialization=True)
        words.tokenizer.save_pretrained(folder)
        for name in ("preprocessor_config.json", "known_words.json"):
            (folder / name).write_bytes((pair / name).read_bytes())

    replace_folder(target, write)


def _begin(pair: Path) -> tuple[CLIPModel, Words]:
    """Return the pair with a token for each word of the motions, of which only the new ones can learn."""
    before = CLIPTokenizer.from_pretrained(pair)
    words = Words(with_words(before, motion_words()))
    model = CLIPModel.from_pretrained(pair, dtype=torch.float32, use_safetensors=True).eval().requires_grad_(False)
    old = _table(model).detach()
    # a new word begins as the mean of the pieces that spelled it
    pieces = {number: word.removesuffix("</w>") for word, number in words.tokenizer.get_vocab().items()}
    if words.size == len(old):
        raise ConfigurationError(f"{pair}: its vocabulary has the words of motions already; begin with another pair")
    new = [old[before(pieces[n]).input_ids[1:-1]].mean(0) for n in range(len(old), words.size)]
    table = torch.stack([*old, *new])
    model.text_model.embeddings.token_embedding = nn.Embedding(words.size, old.shape[1], _weight=table)
    model.config.text_config.vocab_size = words.size
    learns = (torch.arange(words.size) >= len(old))[:, None]
    _table(model).register_hook(lambda gradient: gradient * learns)  # type: ignore[no-untyped-call]  # torch has no type for it
    return model, words


def _table(model: CLIPModel) -> nn.Parameter:
    table: nn.Parameter = model.text_model.embeddings.token_embedding.weight
    return table


def _loss(model: CLIPModel, words: Words, plan: MotionWordsPlan, rng: random.Random) -> torch.Tensor:
    """Return the weighted squared error of the cosines between the captions, with and without their motions."""
    scenes, groups = _batch(rng, plan.groups)
    wordings = [rng.randrange(CLIP_WORDINGS) for _ in scenes]
    with torch.no_grad():
        still = embed_text(model, words, [still_caption(s, n) for s, n in zip(scenes, wordings, strict=True)])
    texts = [clip_caption(s, n) for s, n in zip(scenes, wordings, strict=True)]
    texts = [_with_neutral_word(text, rng) if rng.random() < plan.neutral else text for text in texts]
    moving = embed_text(model, words, texts)
    found = torch.cat([moving, still])
    wanted = _wanted(still.repeat(2, 1), [*scenes, *(MovingScene(scene.scene) for scene in scenes)], plan)
    group = torch.tensor(groups).repeat(2)
    weights = 1 + (plan.within - 1) * (group[:, None] == group)
    return (weights * (found @ found.T - wanted).square()).mean()


def _batch(rng: random.Random, groups: int) -> tuple[list[MovingScene], list[int]]:
    scenes: list[MovingScene] = []
    of: list[int] = []
    for group in range(groups):
        base = random_moving_scene(rng)
        drift = rng.choice(BACKGROUND_MOTIONS)
        found = [with_motion(base.scene, motion, drift) for motion in MOTIONS]
        found += [with_motion(base.scene, base.motion, one) for one in BACKGROUND_MOTIONS]
        found += [edit_clip(base, rng.choice(CLIP_EDITS), rng) for _ in range(2)]
        scenes += found
        of += [group] * len(found)
    return scenes, of


def _wanted(still: torch.Tensor, scenes: Sequence[MovingScene], plan: MotionWordsPlan) -> torch.Tensor:
    """Return the cosines that are wanted: those of vectors that join scene, motion and drift at right angles.

    still: vectors of the captions without motions (B, 128). The vectors of the seven motions point away from each other
    as far as seven can, cosine −1/6; an object that stays, and a background that does, add nothing."""
    motion = torch.tensor([MOTIONS.index(scene.motion) for scene in scenes])
    drifts = torch.tensor([scene.background_motion == "drift" for scene in scenes]).float()
    moves = (motion > 0).float()
    alike = (motion[:, None] == motion).float()
    both = moves[:, None] * moves * (alike - (1 - alike) / (len(MOTIONS) - 2))
    lengths = (1 + plan.motion * moves + plan.drift * drifts).sqrt()
    joined = still @ still.T + plan.motion * both + plan.drift * drifts[:, None] * drifts
    return joined / (lengths[:, None] * lengths)


def _with_neutral_word(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    words.insert(rng.randint(0, len(words)), rng.choice(NEUTRAL))
    return " ".join(words)


@torch.no_grad()
def similarities(model: CLIPModel, words: Words) -> dict[str, list[float]]:
    """Return the 10th, 50th and 90th percentile of the cosine between two prompts, by their one difference."""
    rng = random.Random(99)
    found: dict[str, list[float]] = {}
    for _ in range(CHECKED):
        base, wording = random_moving_scene(rng), rng.randrange(CLIP_WORDINGS)
        another = rng.randrange(CLIP_WORDINGS)
        texts = [
            clip_caption(edit_clip(base, kind, rng), another if kind == "paraphrase" else wording)
            for kind in CLIP_EDITS
        ]
        own, *rest = embed_text(model, words, [clip_caption(base, wording), *texts])
        for kind, vector in zip(CLIP_EDITS, rest, strict=True):
            found.setdefault(kind, []).append(float(own @ vector))
    return {kind: [sorted(values)[len(values) * share // 10] for share in (1, 5, 9)] for kind, values in found.items()}
