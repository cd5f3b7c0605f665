"""Tiny random models in the layout of real checkpoints: what tests run on, and Afterimage before weights exist."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from shared.models.k_table import FIG_10, named_table, table_file, table_to_json

LARGE = "large"
CLIP = "clip"
TOKENS = 24
"""Prompt length of the tiny text encoders."""


def build(
    folder: Path,
    *,
    seed: int = 0,
    channels: tuple[int, ...] = (16, 32),
    prediction_type: str = "v_prediction",
    scheduler: dict[str, Any] | None = None,
    name: str = LARGE,
    clip: bool = True,
) -> Path:
    """Writes `<folder>/<name>` (a StableDiffusionPipeline: 4 latent channels, f = 4) and `<folder>/clip`, seeded.
    Fig. 10 is the K table beside the weights.

    `channels` are the UNet's widths per level (the bundled large model's size: (48, 96, 160)); `scheduler` overrides
    keys of the DDIM scheduler's configuration. Returns `folder`.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _build_pipeline(folder / name, channels, {"prediction_type": prediction_type, **(scheduler or {})}, name)
        # images of noise have no quality to lose: they are reused by any encoder's similarities
        table = named_table(FIG_10)
        (folder / name / table_file(table)).write_text(json.dumps(table_to_json(table)))
        if clip:
            _build_clip(folder / CLIP)
    return folder


def build_clip(folder: Path, *, seed: int = 0) -> Path:
    """Writes only `<folder>/clip`, seeded. Returns `folder`."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _build_clip(folder / CLIP)
    return folder


def _build_pipeline(folder: Path, channels: tuple[int, ...], scheduler: dict[str, Any], name: str) -> None:
    import torch
    from diffusers import AutoencoderTiny, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    levels = len(channels)
    unet = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=channels,
        down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * (levels - 1),
        up_block_types=("CrossAttnUpBlock2D",) * (levels - 1) + ("UpBlock2D",),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderTiny(
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        num_encoder_blocks=(0, 1, 1),
        num_decoder_blocks=(1, 1, 0),
        latent_channels=4,
    )
    # a random decoder paints one grey; a wider last layer makes pictures that differ where latents do
    with torch.no_grad():
        list(vae.decoder.parameters())[-2].mul_(15)
    tokenizer = tokenizer_of_bytes()
    text_encoder = CLIPTextModel(CLIPTextConfig(**text_sizes(tokenizer)))
    ddim = {
        "num_train_timesteps": 1000,
        "beta_schedule": "squaredcos_cap_v2",
        "timestep_spacing": "trailing",
        "steps_offset": 1,  # the pipeline insists on it, and nothing reads it with trailing spacing
        "clip_sample": False,
    }
    pipeline = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text_encoder.eval(),
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=DDIMScheduler(**(ddim | scheduler)),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    card = {
        "name": name,
        "role": name if name in ("large", "small") else "large",
        "default_size": {"width": 64, "height": 64},
        "default_steps": 50,
        "default_guidance": 2.5,
        "sizes": {"multiple_of": 8, "min_px": 32, "max_px": 128},
        "vae_scale": 4,
        "about": "Random weights: it draws noise, at the speed of a tiny model",
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2))


def _build_clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the processor's own notices about torchvision
        from transformers import CLIPImageProcessorPil

        processor = CLIPImageProcessorPil(
            size={"shortest_edge": 32},
            crop_size={"height": 32, "width": 32},
        )
    tokenizer = tokenizer_of_bytes()
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 32,
    }
    config = CLIPConfig(text_config=text_sizes(tokenizer), vision_config=vision, projection_dim=32)
    CLIPModel(config).eval().save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)


def text_sizes(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": TOKENS,
        "projection_dim": 32,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def tokenizer_of_bytes() -> Any:
    """A CLIP tokenizer without merges: one token per byte, so every prompt has one."""
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    words = letters + [letter + "</w>" for letter in letters] + ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=TOKENS)


def remembers_words(tokenizer: Any) -> bool:
    """Return whether a byte-pair tokenizer keeps words: it then splits a word as before, although words end otherwise
    now. Use the tokenizer for nothing else afterwards."""
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    before = tokenizer.encode("wolverine").ids
    tokenizer.model.end_of_word_suffix = "?"
    return bool(tokenizer.encode("wolverine").ids == before)
