"""Architectures of the models with known cards, with random weights: speed and memory need no trained weights.

Configurations are those of the published checkpoints (their config.json files). Everything is built on torch's current
default device and dtype. `with torch.device("meta")` allocates nothing and still counts parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from shared.models import ModelCard, find_card

KL = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}
KL16 = {**KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
DC = {
    "latent_channels": 32,
    "attention_head_dim": 32,
    "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "encoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "decoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "encoder_layers_per_block": (2, 2, 2, 3, 3, 3),
    "decoder_layers_per_block": (3, 3, 3, 3, 3, 3),
    "encoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "decoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "downsample_block_type": "conv",
    "upsample_block_type": "interpolate",
    "scaling_factor": 0.41407,
}
SD35_LARGE = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 38,
    "attention_head_dim": 64,
    "num_attention_heads": 38,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 2432,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
    "qk_norm": "rms_norm",
}
FLUX_DEV = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}
SANA = {
    "in_channels": 32,
    "out_channels": 32,
    "num_layers": 20,
    "num_attention_heads": 70,
    "attention_head_dim": 32,
    "num_cross_attention_heads": 20,
    "cross_attention_head_dim": 112,
    "cross_attention_dim": 2240,
    "caption_channels": 2304,
    "mlp_ratio": 2.5,
    "sample_size": 32,
    "patch_size": 1,
}
SDXL = {
    "sample_size": 128,
    "layers_per_block": 2,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@dataclass(frozen=True)
class Shape:
    """One model: diffusers' classes and configurations, and the shape of an encoded prompt."""

    hub_id: str
    pipeline: str
    denoiser: tuple[str, dict[str, Any]]
    vae: tuple[str, dict[str, Any]]
    text: tuple[str, ...]
    hidden: tuple[int, int]
    """(tokens, width) of an encoded prompt."""
    pooled: int = 0
    """Width of the pooled vector; 0: none."""
    scheduler: tuple[tuple[str, float | bool], ...] = (("shift", 3.0),)

    @property
    def card(self) -> ModelCard:
        return find_card(self.hub_id)


_SD3 = ("SD3Transformer2DModel", SD35_LARGE)
_KL3 = ("AutoencoderKL", {**KL16, "scaling_factor": 1.5305, "shift_factor": 0.0609})
_THREE = ("clip-l-projected", "clip-g", "t5-xxl")
SHAPES = {
    "sd-3.5-large": Shape(
        "stabilityai/stable-diffusion-3.5-large", "StableDiffusion3Pipeline", _SD3, _KL3, _THREE, (77 + 256, 4096), 2048
    ),
    "sd-3.5-large-turbo": Shape(
        "stabilityai/stable-diffusion-3.5-large-turbo",
        "StableDiffusion3Pipeline",
        _SD3,
        _KL3,
        _THREE,
        (77 + 256, 4096),
        2048,
    ),
    "flux.1-dev": Shape(
        "black-forest-labs/FLUX.1-dev",
        "FluxPipeline",
        ("FluxTransformer2DModel", FLUX_DEV),
        ("AutoencoderKL", {**KL16, "scaling_factor": 0.3611, "shift_factor": 0.1159}),
        ("clip-l", "t5-xxl"),
        (512, 4096),
        768,
        (("shift", 3.0), ("use_dynamic_shifting", True)),
    ),
    "sdxl": Shape(
        "stabilityai/stable-diffusion-xl-base-1.0",
        "StableDiffusionXLPipeline",
        ("UNet2DConditionModel", SDXL),
        ("AutoencoderKL", {**KL, "latent_channels": 4, "scaling_factor": 0.13025}),
        ("clip-l", "clip-g"),
        (77, 2048),
        1280,
        (("steps_offset", 1),),
    ),
    "sana-1.6b": Shape(
        "Efficient-Large-Model/Sana_1600M_1024px_diffusers",
        "SanaPipeline",
        ("SanaTransformer2DModel", SANA),
        ("AutoencoderDC", DC),
        ("gemma-2-2b",),
        (300, 2304),
    ),
}


def build(part: tuple[str, dict[str, Any]]) -> torch.nn.Module:
    """Build a denoiser or VAE, with random weights unless the default device is `meta`."""
    import diffusers

    name, config = part
    return getattr(diffusers, name)(**config).eval()


def build_text_encoder(name: str) -> torch.nn.Module:
    """Build one of the text encoders by its common name."""
    import transformers

    clip_l = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    clip_g = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
    t5 = {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_layers": 24, "num_heads": 64, "vocab_size": 32128}
    gemma = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8}
    made: dict[str, Any] = {
        "clip-l": lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**clip_l)),
        "clip-l-projected": lambda: transformers.CLIPTextModelWithProjection(
            transformers.CLIPTextConfig(**clip_l, projection_dim=768)
        ),
        "clip-g": lambda: transformers.CLIPTextModelWithProjection(
            transformers.CLIPTextConfig(**clip_g, projection_dim=1280)
        ),
        "t5-xxl": lambda: transformers.T5EncoderModel(transformers.T5Config(**t5, feed_forward_proj="gated-gelu")),
        "gemma-2-2b": lambda: transformers.Gemma2Model(
            transformers.Gemma2Config(**gemma, num_key_value_heads=4, head_dim=256, vocab_size=256000)
        ),
    }
    return made[name]().eval()
