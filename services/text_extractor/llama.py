"""A causal language model that copies both phrases from the prompt (FlexCache §5: Llama2-7B).

The model continues a few examples. Its output is constrained: each phrase is a piece of the prompt, token by token, or
"none". The examples are computed once, and their keys and values are reused by every batch.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.text_extractor import Extraction, Span
from services.text_extractor.marking import LIKELY
from shared.domain.errors import ModelError
from shared.models.devices import chosen_device, single_threaded
from shared.models.word_caches import keeping_no_words

EXAMPLES = """Copy from each prompt the main object with what it does, then the place or time. Write none without one.

Prompt: a video of a small cat playing with a ball on a beach at sunset, 4k
Object: a small cat playing with a ball
Background: on a beach at sunset

Prompt: two astronauts dancing together, cinematic, highly detailed
Object: two astronauts dancing together
Background: none

Prompt: in a dark forest, an old knight fights a dragon, anime style
Object: an old knight fights a dragon
Background: in a dark forest

Prompt: beautiful mountains at night, drone shot
Object: none
Background: mountains at night

Prompt: spiderman eating pizza in the middle of new york
Object: spiderman eating pizza
Background: in the middle of new york

Prompt:"""
NONE, MIDDLE, HEAD = " none", "Background:", "\nObject:"


@dataclass(frozen=True)
class Copying:
    """What the model may write next: both phrases of one prompt, copied, each with a line break behind it."""

    ids: tuple[int, ...]
    """Tokens of the prompt."""
    begins: tuple[bool, ...]
    ends: tuple[bool, ...]
    none: tuple[int, ...]
    middle: tuple[int, ...]
    line: int
    end: int

    def allowed(self, written: Sequence[int]) -> list[int]:
        """Return the tokens that may follow those written so far."""
        return self._read(written)[0]

    def spans(self, written: Sequence[int]) -> list[Span | None] | None:
        """Return the tokens [first, last] of object and background, None for none; None if they are not complete."""
        found = self._read(written)[1]
        return found if len(found) == 2 else None

    def _read(self, written: Sequence[int]) -> tuple[list[int], list[Span | None]]:
        at, found = 0, list[Span | None]()
        while len(found) < 2:
            taken = set(range(found[0][0], found[0][1] + 1)) if found and found[0] else set[int]()
            live = [(one, one - 1) for one, begins in enumerate(self.begins) if begins and one not in taken]
            said = fresh = 0  # tokens of "none", and of the phrase
            while at < len(written) and not (written[at] == self.line and fresh):
                live = [(s, e + 1) for s, e in live if self._copies(e + 1, written[at], taken)]
                said = said + 1 if said == fresh < len(self.none) and self.none[said] == written[at] else -1
                fresh, at = fresh + 1, at + 1
            if at == len(written):
                return self._next(live, said, fresh, taken), found
            at += 1
            found.append(next(((s, e) for s, e in live if self.ends[e]), None))
            for token in self.middle if len(found) == 1 else ():
                if at == len(written):
                    return [token], found
                at += 1
        return [self.end], found

    def _copies(self, at: int, token: int, taken: set[int]) -> bool:
        return at < len(self.ids) and self.ids[at] == token and at not in taken

    def _next(self, live: Sequence[Span], said: int, fresh: int, taken: set[int]) -> list[int]:
        tokens = {self.ids[e + 1] for _, e in live if e + 1 < len(self.ids) and e + 1 not in taken}
        if said == fresh and said < len(self.none):
            tokens.add(self.none[said])
        whole = said == fresh == len(self.none)
        if fresh and (whole or any(self.ends[e] for _, e in live)):
            tokens.add(self.line)
        return sorted(tokens) or [self.line]


class CausalLlama:
    """Loaded weights of a causal language model; call from the thread that loaded them."""

    seats = 8

    def __init__(self, path: Path, name: str, tokens: int, device: str) -> None:
        """Load a folder in transformers' layout, or a .gguf file. Raise ModelError if that fails.

        tokens: tokens of a prompt that are read, and those that are written at most (§5).
        """
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

        device = chosen_device(device)
        if device == "cpu":
            single_threaded()
        self.id, self._torch, self._tokens, self._device = name, torch, tokens, device
        source: dict[str, Any] = {"local_files_only": True}
        folder = path
        if path.suffix == ".gguf":
            folder, source["gguf_file"] = path.parent, path.name
        try:
            self._tokenizer = keeping_no_words(AutoTokenizer.from_pretrained(folder, **source))
            dtype = torch.float32 if device == "cpu" else torch.float16  # FlexCache §5: float16
            self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True, **source)
        except Exception as error:
            raise ModelError(f"extractor {path}: cannot be loaded as a causal language model ({error})") from error
        if not self._tokenizer.is_fast:
            raise ModelError(f"extractor {path}: needs a tokenizer.json, so that tokens have places in the prompt")
        self._model.to(device).eval().requires_grad_(False)
        self._prefix = self._ids(EXAMPLES, special=True)
        self._head, self._none, self._middle = (self._ids(text) for text in (HEAD, NONE, MIDDLE))
        self._line, self._end = self._ids("\n")[-1], self._stop()
        with torch.inference_mode():
            self._cache = DynamicCache(config=self._model.config)
            self._model(self._tensor([self._prefix]), past_key_values=self._cache, use_cache=True)

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        rows = [self._copying(prompt) for prompt in prompts]
        tails = [[*copying.ids, *self._head] for copying, _ in rows]
        longest = max(map(len, tails))
        pads = [[self._end] * (longest - len(tail)) for tail in tails]  # between the examples and the prompt
        ids = self._tensor([[*self._prefix, *pad, *tail] for pad, tail in zip(pads, tails, strict=True)])
        masks = [[1] * len(self._prefix) + [0] * len(pad) + [1] * (longest - len(pad)) for pad in pads]
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(len(prompts))
        begun = ids.shape[1]
        with self._torch.inference_mode():
            answer = self._model.generate(
                ids, attention_mask=self._tensor(masks), past_key_values=cache, max_new_tokens=self._tokens,
                do_sample=False, num_beams=1, pad_token_id=self._end, eos_token_id=self._end,
                prefix_allowed_tokens_fn=lambda row, written: rows[row][0].allowed(written[begun:].tolist()),
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        chosen = answer.sequences[:, begun:]
        likely = [scores.softmax(-1).gather(1, chosen[:, at : at + 1]) for at, scores in enumerate(answer.scores)]
        least = self._torch.cat(likely, 1)
        found = []
        for row, (copying, characters) in enumerate(rows):
            written = chosen[row].tolist()
            length = written.index(self._end) if self._end in written else len(written)
            found.append(_extraction(copying, characters, written[:length], float(least[row, :length].min())))
        return found

    def _copying(self, prompt: str) -> tuple[Copying, list[Span]]:
        """Return what may be copied from a prompt, and the characters of its tokens."""
        line = " " + _BREAK.sub(" ", prompt)
        read = self._tokenizer(line, add_special_tokens=False, return_offsets_mapping=True)
        ids, places = read.input_ids[: self._tokens], read.offset_mapping[: self._tokens]
        characters = []
        for start, end in places:  # without the space that tokens begin with; the line begins with one more
            start += len(line[start:end]) - len(line[start:end].lstrip())
            characters.append((max(start - 1, 0), max(end - 1, 0)))
        count, word = len(ids), [any(map(str.isalnum, prompt[slice(*one)])) for one in characters]
        begins = [word[n] and not (characters[n][0] and prompt[characters[n][0] - 1].isalnum()) for n in range(count)]
        ends = [word[n] and not prompt[characters[n][1] : characters[n][1] + 1].isalnum() for n in range(count)]
        copying = Copying(
            tuple(ids), tuple(begins), tuple(ends), tuple(self._none), tuple(self._middle), self._line, self._end
        )
        return copying, characters

    def _ids(self, text: str, *, special: bool = False) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=special).input_ids)

    def _stop(self) -> int:
        end = self._tokenizer.eos_token_id
        return int(end if end is not None else self._tokenizer.pad_token_id or 0)

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Any:
        return self._torch.tensor(rows, device=self._device)


_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Each character at which str.splitlines breaks a line."""


def _extraction(copying: Copying, characters: Sequence[Span], written: Sequence[int], least: float) -> Extraction:
    spans = copying.spans(written)
    if spans is None:
        return Extraction()
    thing, place = (None if one is None else (characters[one[0]][0], characters[one[1]][1]) for one in spans)
    return Extraction(thing, place, thing is not None and least >= LIKELY)
