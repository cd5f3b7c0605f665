"""Ways of realignment, and a UNet family that applies them per row; `bench.realignment` describes the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.gpu_worker.engine.rows import Row, Stepped
from services.gpu_worker.families.pipeline import load_pipeline
from services.gpu_worker.families.unet import UNetFamily


@dataclass(frozen=True, slots=True)
class Realignment:
    """One setting; the fields are described above."""

    old: float = 0.0
    mixed: float = 0.0
    added: float = 0.0
    further: float = 0.0
    logits: float = 1.0
    values: float = 1.0
    guidance: float = 1.0
    first: int = 0

    @classmethod
    def read(cls, text: str) -> Realignment:
        """Read a setting; ValueError for an unknown word."""
        if text == "off":
            return cls()
        words = dict(word.split("=") for word in text.split(","))
        if unknown := set(words) - {field.name for field in fields(cls)}:
            raise ValueError(f"settings must be words of --help (got {', '.join(sorted(unknown))} in {text!r})")
        numbers: dict[str, Any] = {name: (int if name == "first" else float)(value) for name, value in words.items()}
        return cls(**numbers)

    def active(self, step: int) -> Realignment:
        """Return the setting of the step-th step since the start, counted from 0."""
        return OFF if self.first and step >= self.first else self

    def rows(self, steps: int) -> int:
        """Return the denoiser's rows of `steps` steps; two a step without realignment."""
        extra = min(self.first or steps, steps) if self.added else 0
        return 2 * steps + extra


OFF = Realignment()


@dataclass(frozen=True, slots=True)
class Prompts:
    """The encodings that a reused row may need, and how their tokens correspond."""

    new: Tensor
    """(tokens, width)."""
    old: Tensor
    empty: Tensor
    changed: tuple[int, ...]
    """Places of the new prompt's tokens that the old prompt does not have."""
    partners: tuple[int, ...]
    """Place in the old prompt for each token of the new one; −1: none."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a forward pass and its weight in the sum."""

    weight: float
    hidden: Tensor
    changed: tuple[int, ...] = ()
    logits: float = 1.0
    values: float = 1.0


def passes(own: Realignment, prompts: Prompts, guidance: float) -> list[Pass]:
    """Return the rows whose weighted sum is the guided output."""
    partners = torch.tensor(prompts.partners)
    apart = torch.where((partners < 0)[:, None], torch.zeros(()), prompts.new - prompts.old[partners])
    new = prompts.new + own.further * apart if own.further else prompts.new

    def of_new(weight: float) -> Pass:
        return Pass(weight, new, prompts.changed, own.logits, own.values)

    if own.old:
        return [of_new(1 + own.old), Pass(-own.old, prompts.old)]
    scale = guidance * own.guidance
    negative = torch.lerp(prompts.empty, prompts.old, own.mixed) if own.mixed else prompts.empty
    rows = [of_new(scale + own.added), Pass(1 - scale, negative)]
    return [*rows, Pass(-own.added, prompts.old)] if own.added else rows


def aligned(new: Sequence[int], old: Sequence[int], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `changed` and `partners` of two prompts' own tokens, which follow the start token."""
    changed: list[int] = []
    partners = [-1] * length
    partners[0] = 0
    for tag, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(j_end - j):
            if tag != "equal":
                changed.append(1 + j + place)
            if place < i_end - i:
                partners[1 + j + place] = 1 + i + place
    for place in range(1 + len(new), length):
        partners[place] = min(place - len(new) + len(old), length - 1)
    return tuple(changed), tuple(partners)


class Amplified:
    """Cross-attention processor of diffusers with gains per row and token, (B, tokens)."""

    def __init__(self) -> None:
        self.logits: Tensor | None = None
        self.values: Tensor | None = None

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        assert self.logits is not None
        assert self.values is not None
        heads = [
            part.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            for part in (
                attn.to_q(hidden_states),
                attn.to_k(encoder_hidden_states),
                attn.to_v(encoder_hidden_states) * self.values[..., None],
            )
        ]
        query, key, value = heads
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=self.logits.log()[:, None, None])
        return attn.to_out[1](attn.to_out[0](mixed.transpose(1, 2).flatten(2)))


class RealignedFamily(UNetFamily):
    """A UNet family that realigns the rows of the tasks in `realigned`: task id → (setting, the source's prompt)."""

    def __init__(self, card: Any) -> None:
        super().__init__(card, load_pipeline(card, "StableDiffusionPipeline"), device=torch.device("cpu"))
        self.realigned: dict[str, tuple[Realignment, str]] = {}
        self.rows_run = 0
        self._amplified = Amplified()
        processors = self.denoiser.attn_processors
        self.denoiser.set_attn_processor(
            {name: self._amplified if ".attn2." in name else one for name, one in processors.items()}
        )

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        per_row = [self._passes(row) for row in rows]
        owners = [index for index, own in enumerate(per_row) for _ in own]
        flat = [one for own in per_row for one in own]
        latents = torch.stack([row.latent for row in rows])
        tokens = flat[0].hidden.shape[0]
        self._amplified.logits, self._amplified.values = torch.ones(2, len(flat), tokens)
        for number, one in enumerate(flat):
            self._amplified.logits[number, list(one.changed)] = one.logits
            self._amplified.values[number, list(one.changed)] = one.values
        timesteps = torch.stack([rows[index].position.timestep for index in owners])
        hidden = torch.stack([one.hidden for one in flat])
        output = self.denoiser(latents[owners], timesteps, encoder_hidden_states=hidden, return_dict=False)[0]
        weights = torch.tensor([one.weight for one in flat]).view(-1, 1, 1, 1)
        guided = torch.zeros_like(latents).index_add_(0, torch.tensor(owners), weights * output)
        self.rows_run += len(flat)
        moved, clean = self.sampler.step(latents, guided, [row.position for row in rows], None)
        return list(map(Stepped, moved.unbind(), clean.unbind()))

    def _passes(self, row: Row) -> list[Pass]:
        setting, source = self.realigned.get(row.task.id, (OFF, row.task.prompt))
        return passes(setting.active(row.done - row.started), self._prompts(row.task.prompt, source), row.task.guidance)

    def _prompts(self, new: str, old: str) -> Prompts:
        after, before, empty = (self.encode_prompt(text).hidden for text in (new, old, ""))
        ids, source_ids = (self.pipeline.tokenizer(text, add_special_tokens=False).input_ids for text in (new, old))
        changed, partners = aligned(ids, source_ids, len(after))
        return Prompts(after, before, empty, changed, partners)
