"""Tiny random checkpoints of the families whose VAE compresses time, see tiny_families."""

from __future__ import annotations

from typing import Any

from tests.tiny_parts import WIDTH, t5, t5_tokenizer, umt5


def wan(**choices: Any) -> Any:
    """A WanPipeline: 4 latent channels, f = 4, 4 frames a latent frame, its published scheduler (UniPC, shift 3)."""
    import diffusers

    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[-0.7, 0.1, 0.9, -0.2],
        latents_std=[2.8, 1.4, 2.3, 1.9],
        scale_factor_spatial=4,
    )
    return diffusers.WanPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=umt5(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        **choices,
    )


def ltx(**vae_choices: Any) -> Any:
    """An LTXPipeline: 4 latent channels, f = 8, 8 frames a latent frame, its published scheduler (shift by tokens)."""
    import diffusers
    import torch

    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        num_layers=2,
        caption_channels=WIDTH,
    )
    vae = diffusers.AutoencoderKLLTXVideo(
        **{
            "latent_channels": 4,
            "block_out_channels": (8, 8, 8, 8),
            "decoder_block_out_channels": (8, 8, 8, 8),
            "layers_per_block": (1, 1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1, 1, 1),
            "patch_size": 1,
            **vae_choices,
        }
    )
    vae.latents_mean.copy_(torch.tensor([-0.7, 0.1, 0.9, -0.2]))
    vae.latents_std.copy_(torch.tensor([2.8, 1.4, 2.3, 1.9]))
    return diffusers.LTXPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=t5(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
    )


def cogvideox(*, snr_shift_scale: float = 3.0, **denoiser: Any) -> Any:
    """A CogVideoXPipeline as published for 2B: 4 latent channels, f = 4, 4 frames a latent frame, DDIM on v."""
    import diffusers

    transformer = diffusers.CogVideoXTransformer3DModel(
        **{
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 8,
            "text_embed_dim": WIDTH,
            "num_layers": 2,
            "sample_width": 16,
            "sample_height": 8,
            "sample_frames": 17,
            "max_text_seq_length": 32,
            **denoiser,
        }
    )
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 3,
        up_block_types=("CogVideoXUpBlock3D",) * 3,
        block_out_channels=(2, 2, 2),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
    )
    return diffusers.CogVideoXPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=t5(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            clip_sample=False,
            timestep_spacing="trailing",
            rescale_betas_zero_snr=True,
            snr_shift_scale=snr_shift_scale,
        ),
    )
