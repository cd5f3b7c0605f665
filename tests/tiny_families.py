"""Tiny random checkpoints of the real model families, in their pipelines' own layout: built offline in a second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import tiny_video_families
from tests.tiny import tokenizer_of_bytes
from tests.tiny_parts import LETTERS, WIDTH, clip_config, kl, t5, t5_tokenizer


def sdxl(**denoiser: Any) -> Any:
    """A StableDiffusionXLPipeline: 4 latent channels, f = 2, its published scheduler (EulerDiscrete, leading)."""
    import diffusers
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    clip = clip_config()
    unet = diffusers.UNet2DConditionModel(
        **{
            "sample_size": 32,
            "layers_per_block": 1,
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": (2, 4),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "transformer_layers_per_block": (1, 2),
            "projection_class_embeddings_input_dim": 6 * 8 + WIDTH,
            "cross_attention_dim": 2 * WIDTH,
            "norm_num_groups": 8,
            **denoiser,
        }
    )
    return diffusers.StableDiffusionXLPipeline(
        vae=kl(4, scaling_factor=0.13025),
        text_encoder=CLIPTextModel(clip).eval(),
        text_encoder_2=CLIPTextModelWithProjection(clip).eval(),
        tokenizer=tokenizer_of_bytes(),
        tokenizer_2=tokenizer_of_bytes(),
        unet=unet.eval(),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.012,
            steps_offset=1,
            timestep_spacing="leading",
        ),
        add_watermarker=False,
    )


def sd3(*, third_encoder: bool = True, **denoiser: Any) -> Any:
    """A StableDiffusion3Pipeline: 16 latent channels, f = 2, static shift 3; `third_encoder`: with T5."""
    import diffusers
    from transformers import CLIPTextModelWithProjection

    clip = clip_config(WIDTH // 2)
    transformer = diffusers.SD3Transformer2DModel(
        **{
            "sample_size": 32,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": WIDTH,
            "pooled_projection_dim": WIDTH,
            "pos_embed_max_size": 32,
            "qk_norm": "rms_norm",
            **denoiser,
        }
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        vae=kl(16, scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=CLIPTextModelWithProjection(clip).eval(),
        text_encoder_2=CLIPTextModelWithProjection(clip).eval(),
        text_encoder_3=t5() if third_encoder else None,
        tokenizer=tokenizer_of_bytes(),
        tokenizer_2=tokenizer_of_bytes(),
        tokenizer_3=t5_tokenizer() if third_encoder else None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def flux(*, guidance_embeds: bool = True, **denoiser: Any) -> Any:
    """A FluxPipeline: 16 latent channels packed 2×2, f = 2; dev has embedded guidance and a shift that grows with the
    picture, schnell (`guidance_embeds=False`) neither."""
    import diffusers
    from transformers import CLIPTextModel

    transformer = diffusers.FluxTransformer2DModel(
        **{
            "patch_size": 1,
            "in_channels": 64,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": WIDTH,
            "pooled_projection_dim": WIDTH,
            "axes_dims_rope": (4, 4, 8),
            "guidance_embeds": guidance_embeds,
            **denoiser,
        }
    )
    shift = {"shift": 3.0, "use_dynamic_shifting": True} if guidance_embeds else {"shift": 1.0}
    return diffusers.FluxPipeline(
        transformer=transformer.eval(),
        vae=kl(16, scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=CLIPTextModel(clip_config()).eval(),
        text_encoder_2=t5(),
        tokenizer=tokenizer_of_bytes(),
        tokenizer_2=t5_tokenizer(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**shift),
    )


def sana(**denoiser: Any) -> Any:
    """A SanaPipeline: 8 latent channels, f = 4, its published scheduler (DPM-Solver++ on flow sigmas, shift 3)."""
    import diffusers
    from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

    transformer = diffusers.SanaTransformer2DModel(
        **{
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": WIDTH,
            "sample_size": 32,
            "mlp_ratio": 2.0,
            **denoiser,
        }
    )
    vae = diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=8,
        attention_head_dim=4,
        encoder_block_out_channels=(8, 8, 16),
        decoder_block_out_channels=(8, 8, 16),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_block_types="ResBlock",
        decoder_block_types="ResBlock",
        encoder_qkv_multiscales=((), (), ()),
        decoder_qkv_multiscales=((), (), ()),
        downsample_block_type="pixel_unshuffle",
        upsample_block_type="pixel_shuffle",
        scaling_factor=0.41407,
    )
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", "\n", *LETTERS]
    tokenizer = GemmaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])
    gemma = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return diffusers.SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=Gemma2Model(gemma).eval(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )


def animatediff(
    *, positions: int = 12, save_apart: Path | None = None, channels: tuple[int, ...] = (16, 32), **denoiser: Any
) -> Any:
    """An AnimateDiffPipeline: 4 latent channels, f = 2, the scheduler of the published motion adapters (DDIM, linear
    betas).

    positions: frames that temporal attention tells apart. channels: widths of one or two levels. save_apart: folder
    that gets the checkpoint with the UNet of images and the adapter apart, as published; the pipeline itself saves both
    merged.
    """
    import diffusers
    from transformers import CLIPTextModel

    unet = diffusers.UNet2DConditionModel(
        **{
            "sample_size": 16,
            "layers_per_block": 1,
            "block_out_channels": channels,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")[: len(channels)],
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")[-len(channels) :],
            "attention_head_dim": 2,
            "cross_attention_dim": WIDTH,
            "norm_num_groups": 8,
            **denoiser,
        }
    )
    adapter = diffusers.MotionAdapter(
        block_out_channels=channels,
        motion_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=8,
        motion_max_seq_length=positions,
    )
    made = diffusers.AnimateDiffPipeline(
        vae=kl(4, scaling_factor=0.18215),
        text_encoder=CLIPTextModel(clip_config()).eval(),
        tokenizer=tokenizer_of_bytes(),
        unet=unet.eval(),
        motion_adapter=adapter.eval(),
        scheduler=diffusers.DDIMScheduler(
            beta_schedule="linear",
            beta_start=0.00085,
            beta_end=0.012,
            clip_sample=False,
            steps_offset=1,
            timestep_spacing="linspace",
        ),
    )
    if save_apart is not None:
        made.save_pretrained(save_apart, safe_serialization=True)
        shutil.rmtree(save_apart / "unet")
        unet.save_pretrained(save_apart / "unet", safe_serialization=True)
        index = json.loads((save_apart / "model_index.json").read_text())
        index["unet"] = ["diffusers", "UNet2DConditionModel"]
        (save_apart / "model_index.json").write_text(json.dumps(index))
    return made


def text_to_video(**denoiser: Any) -> Any:
    """A TextToVideoSDPipeline: 4 latent channels, f = 2, the published scheduler (DDIM, scaled linear betas)."""
    import diffusers
    import torch
    from transformers import CLIPTextModel

    unet = diffusers.UNet3DConditionModel(
        **{
            "sample_size": 16,
            "layers_per_block": 1,
            "block_out_channels": (16, 32),
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "attention_head_dim": 8,
            "cross_attention_dim": WIDTH,
            "norm_num_groups": 8,
            **denoiser,
        }
    )
    for name, weight in unet.named_parameters():
        if name.endswith("conv4.3.weight"):  # zeros at first: the temporal convolutions would do nothing
            torch.nn.init.normal_(weight, std=0.1)
    return diffusers.TextToVideoSDPipeline(
        vae=kl(4, scaling_factor=0.18215),
        text_encoder=CLIPTextModel(clip_config()).eval(),
        tokenizer=tokenizer_of_bytes(),
        unet=unet.eval(),
        scheduler=diffusers.DDIMScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False, steps_offset=1
        ),
    )


FAMILIES: dict[str, Callable[..., Any]] = {
    "sdxl": sdxl,
    "sd3": sd3,
    "flux": flux,
    "sana": sana,
    "animatediff": animatediff,
    "text_to_video": text_to_video,
    "wan": tiny_video_families.wan,
    "ltx": tiny_video_families.ltx,
    "cogvideox": tiny_video_families.cogvideox,
}


def save(folder: Path, name: str, *, seed: int = 0, **choices: Any) -> Path:
    """Writes a tiny checkpoint of FAMILIES' `name` into `folder` as safetensors, seeded. Returns `folder`."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        FAMILIES[name](**choices).save_pretrained(folder, safe_serialization=True)
    return folder
