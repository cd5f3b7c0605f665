"""Components that tiny random checkpoints share: text encoders, a tokenizer and a VAE."""

from __future__ import annotations

import string
from typing import Any

from tests.tiny import TOKENS, text_sizes, tokenizer_of_bytes

LETTERS = string.ascii_letters + string.digits + string.punctuation
WIDTH = 32
"""Of every text encoder, and of what the denoisers attend to."""


def clip_config(width: int = WIDTH) -> Any:
    from transformers import CLIPTextConfig

    return CLIPTextConfig(**{**text_sizes(tokenizer_of_bytes()), "hidden_size": width, "projection_dim": width})


def kl(channels: int, **numbers: float) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=8,
        **numbers,
    ).eval()


def t5() -> Any:
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": WIDTH, "d_ff": WIDTH, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    return T5EncoderModel(T5Config(vocab_size=len(t5_tokenizer()), **sizes)).eval()


def umt5() -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    sizes = {"d_model": WIDTH, "d_ff": WIDTH, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    return UMT5EncoderModel(UMT5Config(vocab_size=len(t5_tokenizer()), **sizes)).eval()


def t5_tokenizer() -> Any:
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -2.0) for letter in LETTERS)]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=TOKENS)
