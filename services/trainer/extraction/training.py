"""Training of the small text extractor: its tokenizer, its batches, its loss, and its export."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForTokenClassification

from services.trainer.extraction.wordings import Wording, Wordings
from services.trainer.extraction.wordnet import read_words
from services.trainer.training import runs
from services.trainer.training.muon import Muon
from services.trainer.training.sitting import Sitting
from shared.domain.errors import ConfigurationError
from shared.models.borders import (
    AGAIN,
    END,
    LABELS,
    PAD,
    START,
    TOKENIZER,
    Reading,
    marked,
    padded,
    read_tokenizer,
    reading,
    special,
    targets,
)

NAME = "extractor"
TOKENS = 77
VOCABULARY = 6144
SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
TEXTS = 40_000
"""Wordings that the tokenizer is learned from."""
JUDGED = 512
POOL = 8
"""Steps whose prompts are drawn together."""
SAVE_EVERY = 50


@dataclass(frozen=True)
class ExtractorPlan:
    steps: int = 2400
    seconds: float = float("inf")
    seed: int = 20
    rate: float = 3e-3
    batch: int = 64


def llama(vocabulary: int, pad: int) -> LlamaForTokenClassification:
    """Return the model with random weights."""
    config = LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=2048, pad_token_id=pad, bos_token_id=None, eos_token_id=None,
        num_labels=len(LABELS), id2label=dict(enumerate(LABELS)), label2id={one: n for n, one in enumerate(LABELS)},
        classifier_dropout=0.0, tie_word_embeddings=False, num_attention_heads=4, num_key_value_heads=2, **SIZES,
    )  # fmt: skip
    return LlamaForTokenClassification(config)


def learned_tokenizer(wordings: Wordings, seed: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of lower-case words, learned from random wordings."""
    rng = random.Random(seed)
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.Lowercase()
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
    )
    learned.decoder = decoders.ByteLevel()
    learned.train_from_iterator(
        (wordings.sample(rng).text for _ in range(TEXTS)),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, START, AGAIN, END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return learned


def train_extractor(plan: ExtractorPlan, wordnet: Path, work: Path) -> None:
    """Train until the plan's steps or seconds are over; another call continues from the last checkpoint."""
    wordings = Wordings(read_words(wordnet))
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{NAME}-{TOKENIZER}"
    if not path.exists():
        learned_tokenizer(wordings, plan.seed).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    torch.manual_seed(plan.seed)
    model = llama(tokenizer.get_vocab_size(), special(tokenizer, PAD))
    matrices = [one for name, one in model.named_parameters() if one.ndim == 2 and "layers" in name]
    chosen = set(matrices)
    others = [one for one in model.parameters() if one not in chosen]
    optimizers = [Muon(matrices, lr=plan.rate), torch.optim.AdamW(others, lr=plan.rate, weight_decay=0.0)]
    sitting = Sitting(
        NAME, work, {"model": model}, optimizers, steps=plan.steps, rate=plan.rate, seconds=plan.seconds, decay=0.99
    )
    pool: list[list[Wording]] = []
    while sitting.begin_step(plan.seed) is not None:
        if not pool or sitting.step % POOL == 0:
            pool = _pool(wordings, plan, sitting.step // POOL)
        loss = _loss(model, tokenizer, pool[sitting.step % POOL])
        sitting.report(plan.batch, loss=float(loss.detach()))
        sitting.end_step(loss)
        if sitting.step % SAVE_EVERY == 0:
            sitting.save()
    sitting.save()
    sitting.plot()


def _pool(wordings: Wordings, plan: ExtractorPlan, number: int) -> list[list[Wording]]:
    """Return the batches of the next steps; each holds prompts of similar length, so that little is padded."""
    rng = random.Random(plan.seed * 1_000_003 + number)
    drawn = sorted((wordings.sample(rng) for _ in range(POOL * plan.batch)), key=lambda one: len(one.text))
    batches = [drawn[at : at + plan.batch] for at in range(0, len(drawn), plan.batch)]
    rng.shuffle(batches)
    return batches


def _readings(tokenizer: Tokenizer, batch: list[Wording]) -> list[Reading]:
    return [reading(tokenizer, one.text, TOKENS) for one in batch]


def _loss(model: nn.Module, tokenizer: Tokenizer, batch: list[Wording]) -> torch.Tensor:
    """Return the mean cross-entropy of the four borders over the places where each may stand."""
    readings = _readings(tokenizer, batch)
    ids, mask = padded(readings, special(tokenizer, PAD))
    logits = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits
    longest = max(len(one.characters) for one in readings) + 1
    places = torch.full((len(batch), longest, len(LABELS)), -torch.inf)
    for row, one in enumerate(readings):
        count, first = len(one.characters), one.first
        allowed = torch.tensor([(*pair, *pair) for pair in zip(one.begins, one.ends, strict=True)] + [(True,) * 4])
        places[row, : count + 1] = logits[row, first : first + count + 1].masked_fill(~allowed, -torch.inf)
    wanted = torch.tensor(
        [targets(one, (text.object, text.background)) for one, text in zip(readings, batch, strict=True)]
    )
    return nn.functional.cross_entropy(places, wanted)


def export_extractor(work: Path, target: Path) -> None:
    """Write the averaged weights in half precision, with configuration and tokenizer."""
    state = runs.load_checkpoint(work / f"{NAME}.pt")
    if state is None:
        raise ConfigurationError(
            f"work: no {NAME}.pt in {work}; run `python -m services.trainer extractor train` first"
        )
    tokenizer = Tokenizer.from_file(str(work / f"{NAME}-{TOKENIZER}"))
    model = llama(tokenizer.get_vocab_size(), special(tokenizer, PAD))
    average = runs.Average([model])
    average.load_state_dict(state["average"])
    average.swap()
    model.half().save_pretrained(target)
    tokenizer.save(str(target / TOKENIZER))


def judge_extractor(folder: Path, wordnet: Path, seed: int = 99) -> dict[str, float]:
    """Return the shares of exact objects, backgrounds and both, on wordings of another seed."""
    rng, wordings, tokenizer = random.Random(seed), Wordings(read_words(wordnet)), read_tokenizer(folder)
    model = LlamaForTokenClassification.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
    ).eval()
    right = []
    for _ in range(JUDGED):
        text = wordings.sample(rng)
        one = reading(tokenizer, text.text, TOKENS)
        with torch.inference_mode():
            scores = model(torch.tensor([one.ids])).logits[0, one.first :].numpy()
        thing, place, _ = marked(one, scores)
        right.append((thing == text.object, place == text.background))
    both = np.array(right)
    shares = (both[:, 0].mean(), both[:, 1].mean(), both.all(axis=1).mean())
    return {name: round(float(share), 3) for name, share in zip(("object", "background", "both"), shares, strict=True)}
