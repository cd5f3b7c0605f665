"""Architectures of the text-to-image models, untrained: UNets, their text encoder, their noise schedule."""

from __future__ import annotations

from dataclasses import dataclass

from diffusers import DDIMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from transformers import CLIPTextConfig, CLIPTextModel

from services.trainer.words import LENGTH, Words

TEXT_WIDTH = 128


@dataclass(frozen=True)
class Shape:
    """A denoiser's architecture: channels per level, the levels with text attention, and an optional middle block."""

    channels: tuple[int, ...] = (48, 96, 160)
    attends: tuple[bool, ...] = (False, True, True)
    """Levels of the up path that attend to the text."""
    attends_down: tuple[bool, ...] | None = None
    """Levels of the down path that attend to the text; None: the same levels."""
    middle: bool = True
    guided: bool = False
    """Guidance distillation: learn another denoiser's guided output, so that a step is one row instead of two."""


LARGE = Shape()
SMALL = Shape(channels=(48, 96), attends=(False, True), attends_down=(False, False), middle=False, guided=True)
SHAPES = {"large": LARGE, "small": SMALL}


def new_unet(shape: Shape) -> UNet2DConditionModel:
    """Return an untrained stock UNet that also adds the pooled text to its time embedding."""
    attends_down = shape.attends if shape.attends_down is None else shape.attends_down
    down = tuple("CrossAttnDownBlock2D" if attends else "DownBlock2D" for attends in attends_down)
    up = tuple("CrossAttnUpBlock2D" if attends else "UpBlock2D" for attends in reversed(shape.attends))
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=shape.channels,
        down_block_types=down,
        up_block_types=up,
        mid_block_type="UNetMidBlock2DCrossAttn" if shape.middle else None,
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
        resnet_time_scale_shift="scale_shift",
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
    )
    unet.set_attn_processor(AttnProcessor())  # on a CPU the fused processor's backward pass took a quarter of a step
    return unet


def new_text_encoder(words: Words) -> CLIPTextModel:
    """Return an untrained text encoder with the architecture of the pair's text tower."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=words.size,
            hidden_size=TEXT_WIDTH,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            projection_dim=TEXT_WIDTH,
            bos_token_id=words.start,
            eos_token_id=words.end,
            pad_token_id=words.end,
            attn_implementation="eager",  # as in new_unet
        )
    )


def new_scheduler() -> DDIMScheduler:
    """Return the noise schedule and sampler of the bundled models."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,  # unused by trailing spacing; StableDiffusionPipeline warns about any other value
    )
