"""Training of the CLIP-style pair: a text and an image tower whose embeddings separate scenes and their objects."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTokenizer, CLIPVisionConfig

from services.trainer.rendering.renderer import SIZES, Renderer
from services.trainer.training import runs
from services.trainer.training.sitting import Sitting
from services.trainer.words import LENGTH, Words, sprinkled, train_tokenizer
from shared.models.scenes import EDITS, VALUES, WORDINGS, Scene, caption, edit, held_out, never_trained, random_scene

IMAGE_SIDE = 64
DIMENSION = 128


@dataclass(frozen=True)
class PairPlan:
    """Training plan of the pair: `steps`, or `seconds` of wall time over all runs, whichever ends first.

    A group is a scene, the scene with another object, the scene with another colour, and one edit.
    """

    steps: int = 2000
    seconds: float = math.inf
    seed: int = 1
    rate: float = 2e-3
    groups: int = 24
    head_weight: float = 1.0
    order_weight: float = 1.0
    order_margin: float = 0.1
    text_share: float = 0.77
    """Share of the run in which the text tower also learns; it converges long before the image tower."""
    judged: int = 1000
    """Number of held-out scenes that score the trained pair."""
    checkpoint_every: int = 100


def pair_config(words: Words) -> CLIPConfig:
    """Return the pair's architecture: text 3 layers of 128, image 4 layers of 160 on patches of 8."""
    text = CLIPTextConfig(
        vocab_size=words.size,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        projection_dim=DIMENSION,
        bos_token_id=words.start,
        eos_token_id=words.end,
        pad_token_id=words.end,
    )
    vision = CLIPVisionConfig(
        hidden_size=160,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=5,
        image_size=IMAGE_SIDE,
        patch_size=8,
        projection_dim=DIMENSION,
    )
    return CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=DIMENSION)


class Heads(nn.Module):
    """Auxiliary classifiers of every attribute, used in training only; they give both towers an early signal."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = nn.ModuleDict({name: nn.Linear(DIMENSION, len(values)) for name, values in VALUES.items()})

    def forward(self, embeddings: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean cross-entropy over the attributes; the object counts six times."""
        losses = [
            (6.0 if n == "object" else 1.0) * F.cross_entropy(h(embeddings), labels[n]) for n, h in self.by_name.items()
        ]
        return torch.stack(losses).sum() / (len(losses) + 5)


def train_pair(
    plan: PairPlan, sprites: Path, work: Path, start: Path | None = None, device: torch.device | None = None
) -> None:
    """Train until the plan is used up, and write `work/clip.pt`.

    Training continues from the last checkpoint if there is one, else from the exported pair in `start`, if given."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    renderer = Renderer(sprites)
    words = Words(tokenizer_at(work))
    model, heads = CLIPModel(pair_config(words)), nn.ModuleList([Heads(), Heads()])
    model.to(device or "cpu")
    heads.to(device or "cpu")
    model.train()
    exported = (
        (lambda: CLIPModel.from_pretrained(start, torch_dtype=torch.float32, use_safetensors=True).state_dict())
        if start
        else None
    )
    sitting = Sitting(
        "clip", work, {"model": model, "heads": heads}, _optimizers(model, heads, plan.rate),
        steps=plan.steps, seconds=plan.seconds, rate=plan.rate, start=exported,
    )  # fmt: skip
    while (begun := sitting.begin_step(plan.seed)) is not None:
        done, rng = begun
        if done >= plan.text_share:
            rest(model)
        losses = _losses(model, heads, words, _batch(renderer, rng, plan.groups), plan)
        sitting.end_step(sum(losses.values(), torch.zeros(())))
        with torch.no_grad():
            model.logit_scale.clamp_(max=4.0)
        seen = sitting.step * plan.groups * 4
        sitting.report(seen, **{name: loss.item() for name, loss in losses.items()})
        if sitting.step % plan.checkpoint_every == 0:
            sitting.save()
        if sitting.step % 500 == 0:
            sitting.average.swap()
            runs.log.info("clip check", **judge_pair(model, words, renderer, count=360))
            sitting.average.swap()
            model.train()
    sitting.save()
    sitting.plot()
    sitting.average.swap()
    runs.log.info("clip done", step=sitting.step, **judge_pair(model, words, renderer, plan.judged))


def rest(model: CLIPModel) -> None:
    """Freeze the text tower: only the image tower learns from now on."""
    model.text_model.requires_grad_(False)
    model.text_projection.requires_grad_(False)


def tokenizer_at(work: Path) -> CLIPTokenizer:
    """Return the run's tokenizer; the first call trains it."""
    folder = work / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        return train_tokenizer(folder)
    return CLIPTokenizer.from_pretrained(folder)


def image_input(pictures: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Convert (B, height, width, 3) uint8 to the image tower's input: resized to a square, −1…1."""
    tensor = runs.to_tensor(pictures)
    if tensor.shape[-2:] != (IMAGE_SIDE, IMAGE_SIDE):
        tensor = F.interpolate(tensor, (IMAGE_SIDE, IMAGE_SIDE), mode="bicubic", antialias=True).clamp(-1, 1)
    return tensor


def embed_text(model: CLIPModel, words: Words, texts: list[str]) -> torch.Tensor:
    """Return unit text embeddings, (B, 128)."""
    ids = words.batch(texts).to(model.device)
    return F.normalize(model.text_projection(model.text_model(input_ids=ids).pooler_output), dim=-1)


def embed_images(model: CLIPModel, inputs: torch.Tensor) -> torch.Tensor:
    """Return unit image embeddings, (B, 128)."""
    return F.normalize(
        model.visual_projection(model.vision_model(pixel_values=inputs.to(model.device)).pooler_output), dim=-1
    )


def _optimizers(model: CLIPModel, heads: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    rest = list(heads.parameters())
    for name, parameter in model.named_parameters():
        (matrices if "encoder.layers" in name and parameter.ndim == 2 else rest).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.02),
    ]


def _batch(renderer: Renderer, rng: random.Random, groups: int) -> tuple[list[Scene], torch.Tensor]:
    width, height = (64, 64) if rng.random() < 0.8 else SIZES[1 + rng.randrange(3)]
    scenes: list[Scene] = []
    for _ in range(groups):
        base = _trainable(rng)
        kinds = ("object", "colour", rng.choice(("object",) * 8 + EDITS[1:-1]))
        scenes += [base, *(_trainable(rng, base, kind) for kind in kinds)]
    layouts = [rng.randrange(64) for _ in range(groups)]  # one layout per group: only the edit differs
    pictures = np.stack([renderer.render(s, width, height, layouts[i // 4]).pixels for i, s in enumerate(scenes)])
    inputs = image_input(pictures)
    if rng.random() < 0.3:
        inputs = F.avg_pool2d(F.pad(inputs, (1, 1, 1, 1), mode="replicate"), 3, 1)
    if rng.random() < 0.5:
        inputs = inputs + rng.random() * 0.12 * torch.randn_like(inputs)
    return scenes, inputs


def _trainable(rng: random.Random, base: Scene | None = None, kind: str = "") -> Scene:
    """Return a random scene, or an edit of `base`, that is not held out; a few scenes have no such edit of their
    style."""
    for attempt in itertools.count():
        scene = random_scene(rng, natural_share=0.3) if base is None else edit(base, kind, rng)
        if not held_out(scene):
            return scene
        kind = kind if attempt < 20 else "object"
    raise AssertionError("every object has trainable scenes")


def _losses(
    model: CLIPModel, heads: nn.ModuleList, words: Words, batch: tuple[list[Scene], torch.Tensor], plan: PairPlan
) -> dict[str, torch.Tensor]:
    scenes, inputs = batch
    rng = random.Random(repr(scenes[0]))
    said = [caption(scene, rng.randrange(WORDINGS)) for scene in scenes]
    taught = model.text_projection.weight.requires_grad
    again = [caption(scene, rng.randrange(WORDINGS)) for scene in scenes[::4]] if taught else []
    texts = [sprinkled(text, rng) if rng.random() < 0.12 else text for text in said + again]
    with runs.autocast(model.device):
        text = embed_text(model, words, texts)
        image = embed_images(model, inputs)
    text, image = text.float(), image.float()
    said_text, again_text = text[: len(scenes)], text[len(scenes) :]
    target = torch.arange(len(scenes), device=image.device)
    logits = model.logit_scale.exp() * image @ said_text.T
    labels = {name: torch.tensor([s.labels()[name] for s in scenes], device=image.device) for name in VALUES}
    of_image = {
        "contrast": (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2,
        "image_heads": 1.5 * plan.head_weight * heads[0](image * 8, labels),
    }
    if not taught:
        return of_image
    return of_image | {
        "text_heads": 0.5 * plan.head_weight * heads[1](said_text * 8, labels),
        "order": plan.order_weight * _order_loss(said_text, again_text, plan.order_margin),
    }


def _order_loss(text: torch.Tensor, again: torch.Tensor, margin: float) -> torch.Tensor:
    base, other, coloured, edited = (text[i::4] for i in range(4))
    near = (base * again).sum(-1)
    colour, thing, any_edit = (base * coloured).sum(-1), (base * other).sum(-1), (base * edited).sum(-1)
    unrelated = (base * base.roll(1, 0)).sum(-1)
    pairs = ((near, colour), (colour, thing), (thing, unrelated), (near, any_edit), (any_edit, unrelated))
    return torch.stack([F.relu(low + margin - high).mean() for high, low in pairs]).sum()


@torch.no_grad()
def judge_pair(model: CLIPModel, words: Words, renderer: Renderer, count: int = 1000) -> dict[str, float]:
    """Score the pair on real renders of `count` scenes of combinations never trained on.

    The scores are retrieval in both directions, zero-shot choice of the object, and the order of edits."""
    model.eval()
    rng = random.Random(17)
    unseen = frozenset(never_trained())
    scenes: list[Scene] = []
    while len(scenes) < count:
        scene = random_scene(rng)
        if (scene.object, scene.background, scene.style) in unseen and scene not in scenes:
            scenes.append(scene)
    pictures = np.stack([renderer.render(scene, layout=i).pixels for i, scene in enumerate(scenes)])
    image = torch.cat([embed_images(model, image_input(pictures[i : i + 100])) for i in range(0, count, 100)])
    text = embed_text(model, words, [caption(scene, i) for i, scene in enumerate(scenes)])
    scores, target = image @ text.T, torch.arange(count, device=image.device)
    return {
        "image_to_text": (scores.argmax(1) == target).float().mean().item(),
        "text_to_image": (scores.argmax(0) == target).float().mean().item(),
        "object": _object_choice(model, words, scenes, image),
        "order": _order_share(model, words, scenes[:300]),
    }


def _object_choice(model: CLIPModel, words: Words, scenes: list[Scene], image: torch.Tensor) -> float:
    """Return the share of images whose own caption scores above the same caption with each other object."""
    right = 0
    names = VALUES["object"]
    for i, (scene, embedding) in enumerate(zip(scenes[:360], image, strict=False)):
        rest = {name: getattr(scene, name) for name in VALUES if name != "object"}
        text = embed_text(model, words, [caption(Scene(str(name), **rest), i) for name in names])
        right += names[int((text @ embedding).argmax())] == scene.object
    return right / min(len(scenes), 360)


def _order_share(model: CLIPModel, words: Words, scenes: list[Scene]) -> float:
    """Return the share of quadruples with paraphrase > colour > object > unrelated in cosine to the original."""
    rng = random.Random(3)
    right = 0
    for scene in scenes:
        wording = rng.randrange(WORDINGS)
        versions = [scene, *(edit(scene, kind, rng) for kind in ("paraphrase", "colour", "object", "unrelated"))]
        wordings = [wording, (wording + 1 + rng.randrange(WORDINGS - 1)) % WORDINGS, wording, wording, wording]
        text = embed_text(model, words, [caption(s, w) for s, w in zip(versions, wordings, strict=True)])
        near = (text[1:] @ text[0]).tolist()
        right += near == sorted(near, reverse=True)
    return right / len(scenes)
